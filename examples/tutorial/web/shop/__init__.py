"""The shop of the tutorial: web, workers, migrations and tests in one project."""
