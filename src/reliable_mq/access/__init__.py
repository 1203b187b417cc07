"""Access control: who may do what at a broker, as Apache RocketMQ's module `auth` decides it.

Receives a request's code, fields and body, the address of its sender, and the tables of users and
policies. Returns nothing, or the reason of a refusal. Pure. Does not know brokers, connections or
files.

- `users`, `resources`, `policies`: values, and how a policy decides.
- `access_table`: all users and policies, and the text of their file.
- `rules`: the table of what each request code needs. `named`: what a request names.
- `guard`: checks a request. `access_settings`: the settings.
- `plain_acl`: the accounts of Apache RocketMQ 4.x.
"""
