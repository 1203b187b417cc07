"""What repairs a finding, and how it is carried out."""
