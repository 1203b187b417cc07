"""The figures of an application's databases for scrapes: read seldom, and limited in time."""
