"""The command line: one verb, one file. Not a station of the walk; may import any package."""
