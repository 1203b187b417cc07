"""How settings are read: their types, their earlier names, and what is said about a wrong one.

`settings` beside this package has the settings themselves. Receives values from code and from the
environment. Returns them under the current names, or an error that says what to write instead.
"""
