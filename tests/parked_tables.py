"""Our tables of one test, emptied and put aside in their database for the next one that wants them.

To create them and to drop them takes PostgreSQL longer than most tests need it. They are put aside
only if everything that describes them is as it was when they were created; else they are dropped.
What a test adds to the schema is dropped in any case.
"""

from hashlib import md5

from sqlalchemy import Connection

_OWN = 16_384  # the first oid that PostgreSQL gives to what users make
_COUNTED = (
    *("pg_depend WHERE objid", "pg_attribute WHERE attrelid", "pg_index WHERE indexrelid"),
    *("pg_constraint WHERE oid", "pg_proc WHERE oid", "pg_sequence WHERE seqrelid"),
    "pg_trigger WHERE oid",
)
"""Catalogs of which the number of a user's rows tells, and the newest of them: a row that was
changed has another xmin. All that is made, of any kind, has a row in pg_depend."""
_COUNTS = " UNION ALL ".join(
    f"SELECT concat_ws(',', count(*), max(xmin::text::bigint)) FROM {own} >= {_OWN}"
    for own in _COUNTED
)
# Everything that describes the schema "public", as one text. TRUNCATE changes only pg_class, and
# there no column that stands here.
_FACTS = f"""(
    SELECT md5(string_agg(fact, ' ' ORDER BY fact)) FROM (
        SELECT concat_ws(',', nspowner, nspacl) AS fact FROM pg_namespace WHERE nspname = 'public'
        UNION ALL SELECT concat_ws(',', oid, relname, relowner, relkind, relpersistence, relnatts,
            relchecks, relrowsecurity, relforcerowsecurity, relreplident, relispartition, relam,
            reltablespace, relacl, reloptions, relkind = 'r' AND reltuples >= 0)
            FROM pg_class WHERE relnamespace = 'public'::regnamespace
        UNION ALL {_COUNTS}
    ) AS facts
)"""

# To empty a file takes PostgreSQL longer than to delete few rows. With fewer than ten pages, it
# plans as if there were ten.
_SMALL = 65_536
PARK = rf"""
DO $$
DECLARE
    place oid := to_regnamespace('public');
    noted text[] := regexp_match(
        obj_description(place, 'pg_namespace'), '^tests (\w+) (\d+) (\w+)$');
    name text;
    names text;
BEGIN
    FOR name IN SELECT nspname FROM pg_namespace
        WHERE nspname NOT LIKE 'pg\_%' AND nspname NOT IN ('information_schema', 'public')
    LOOP
        EXECUTE format('DROP SCHEMA %I CASCADE', name);
    END LOOP;
    IF noted IS NULL THEN
        RETURN;
    END IF;
    SELECT string_agg(oid::regclass::text, ', ') INTO names FROM pg_class
        WHERE relnamespace = place AND relkind IN ('r', 'p') AND oid > noted[2]::oid;
    IF names IS NOT NULL THEN
        EXECUTE 'DROP TABLE ' || names || ' CASCADE';
    END IF;
    SELECT string_agg(oid::regclass::text, ', ') INTO names FROM pg_class
        WHERE relnamespace = place AND relkind = 'r' AND pg_relation_size(oid) > {_SMALL};
    IF names IS NOT NULL THEN
        EXECUTE 'TRUNCATE ' || names || ' CASCADE';
    END IF;
    SET LOCAL session_replication_role = 'replica';
    FOR name IN SELECT oid::regclass FROM pg_class
        WHERE relnamespace = place AND relkind = 'r' AND pg_relation_size(oid) > 0
    LOOP
        EXECUTE 'DELETE FROM ' || name;
    END LOOP;
    PERFORM setval(seqrelid::regclass, seqstart, false)
        FROM pg_sequence JOIN pg_class ON pg_class.oid = seqrelid
        WHERE relnamespace = place AND pg_sequence_last_value(seqrelid) IS NOT NULL;
    IF noted[3] = {_FACTS} THEN
        ALTER SCHEMA public RENAME TO parked;
        PERFORM pg_stat_reset();
    END IF;
END $$
"""
"""Put the tables aside, if they are as they were noted. Nobody else is in the database."""

FORGET = "DROP SCHEMA IF EXISTS parked CASCADE"
"""Let go what is put aside, for a test that may look at all schemas."""

# Whether we may do everything, whether nothing was done in "public" yet, and what is noted of the
# tables that were put aside.
_SEEN = """
SELECT
    current_setting('is_superuser') = 'on',
    current_schema() = 'public' AND NOT EXISTS (
        SELECT FROM pg_class WHERE relnamespace = to_regnamespace('public')
        UNION ALL SELECT FROM pg_type WHERE typnamespace = to_regnamespace('public')
        UNION ALL SELECT FROM pg_proc WHERE pronamespace = to_regnamespace('public')
        UNION ALL SELECT FROM pg_default_acl WHERE defaclnamespace = to_regnamespace('public')),
    to_regnamespace('parked') IS NOT NULL,
    split_part(obj_description(to_regnamespace('parked'), 'pg_namespace'), ' ', 2)
"""


def seen(connection: Connection, form: object) -> tuple[bool, bool]:
    """Return whether nothing was done in the schema, and whether tables of that form came back."""
    may_all, is_new, is_parked, parked = connection.exec_driver_sql(_SEEN).one()
    if not may_all:
        return False, False
    if is_new and parked == _digest(form):
        connection.exec_driver_sql("DROP SCHEMA public")
        connection.exec_driver_sql("ALTER SCHEMA parked RENAME TO public")
        return True, True
    if is_parked:
        connection.exec_driver_sql(FORGET)
    return bool(is_new), False


def note(connection: Connection, form: object) -> None:
    """Note of which form the tables are that were just created, and how they are described."""
    newest, facts = connection.exec_driver_sql(
        f"SELECT max(oid), {_FACTS} FROM pg_class WHERE relnamespace = to_regnamespace('public')"
    ).one()
    connection.exec_driver_sql(
        f"COMMENT ON SCHEMA public IS 'tests {_digest(form)} {newest} {facts}'"
    )


def _digest(form: object) -> str:
    return md5(repr(form).encode(), usedforsecurity=False).hexdigest()
