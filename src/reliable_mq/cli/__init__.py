"""The command line: one verb, one file. Stands outside the walk and may import anything."""
