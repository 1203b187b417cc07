"""What tests of applications use: worlds in memory, real local servers, contracts of stores.

- `message_world`, and its fixture in `pytest_plugin`: an application, all in memory. A world
  consists of `manual_clock`, `memory_broker`, `memory_disk`, `memory_leases`, `memory_client`,
  `memory_connections`, `faults`, `crash_switch`, `effect_check`, `sent_messages`; `sql_emptying`
  empties our tables before it begins, `sql_unsettled` finds the stubs that wait.
- `crash_points`: the death of real processes, at the steps that `crash_watch` sees.
- `local_servers`, `local_valkey_groups`: PostgreSQL and Valkey as child processes.
- `contracts`, `database_contract`: the suites that a store of a third party must pass. The second
  consists of `sender_contract` and `consumer_contract`, on a `contract_database`.

Stands outside the walk; nothing but `cli` imports it from here. `docs/how-to/testing.md` shows each
part.
"""
