"""What tests of applications use: worlds in memory, real local servers, contracts of stores.

`message_world` (and `pytest_plugin`) for tests of an application, `local_servers` and
`local_valkey_groups` for real servers, `contracts` and `database_contract` for stores of third
parties, `crash_points` for the death of real processes. Stands outside the walk; nothing but `cli`
imports it from here.
"""
