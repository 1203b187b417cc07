"""The tutorial does what its pages say."""
