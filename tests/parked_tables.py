"""Our tables of one test, emptied and put aside in their database for the next one that wants them.

To create them and to drop them takes PostgreSQL longer than most tests need it. They are put aside
only if everything that describes them is as it was when they were created; else they are dropped.
What a test adds to the schema is dropped in any case.
"""

from hashlib import md5

from sqlalchemy import Connection

# Everything that describes the schema "public", as one text. A row of a catalog that was changed
# has another xmin; TRUNCATE changes only pg_class, and there no column that stands here.
_FACTS = """(
    SELECT md5(string_agg(fact, ' ' ORDER BY fact)) FROM (
        SELECT concat_ws(',', nspowner, nspacl) AS fact FROM pg_namespace WHERE nspname = 'public'
        UNION ALL SELECT concat_ws(',', oid, relname, relowner, relkind, relpersistence, relnatts,
            relchecks, relrowsecurity, relforcerowsecurity, relreplident, relispartition, relam,
            reltablespace, relacl, reloptions, relkind = 'r' AND reltuples >= 0)
            FROM pg_class WHERE relnamespace = to_regnamespace('public')
        UNION ALL SELECT concat_ws(',', 'attribute', attrelid, attnum, pg_attribute.xmin)
            FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
            WHERE relnamespace = to_regnamespace('public')
        UNION ALL SELECT concat_ws(',', 'index', indexrelid, pg_index.xmin)
            FROM pg_index JOIN pg_class ON pg_class.oid = indrelid
            WHERE relnamespace = to_regnamespace('public')
        UNION ALL SELECT concat_ws(',', 'default', pg_attrdef.oid, pg_attrdef.xmin)
            FROM pg_attrdef JOIN pg_class ON pg_class.oid = adrelid
            WHERE relnamespace = to_regnamespace('public')
        UNION ALL SELECT concat_ws(',', 'trigger', pg_trigger.oid, pg_trigger.xmin)
            FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
            WHERE relnamespace = to_regnamespace('public')
        UNION ALL SELECT concat_ws(',', 'policy', pg_policy.oid, pg_policy.xmin)
            FROM pg_policy JOIN pg_class ON pg_class.oid = polrelid
            WHERE relnamespace = to_regnamespace('public')
        UNION ALL SELECT concat_ws(',', 'rule', pg_rewrite.oid, pg_rewrite.xmin)
            FROM pg_rewrite JOIN pg_class ON pg_class.oid = ev_class
            WHERE relnamespace = to_regnamespace('public')
        UNION ALL SELECT concat_ws(',', 'statistic', starelid, staattnum)
            FROM pg_statistic JOIN pg_class ON pg_class.oid = starelid
            WHERE relnamespace = to_regnamespace('public')
        UNION ALL SELECT concat_ws(',', 'sequence', seqrelid, pg_sequence.xmin)
            FROM pg_sequence JOIN pg_class ON pg_class.oid = seqrelid
            WHERE relnamespace = to_regnamespace('public')
        UNION ALL SELECT concat_ws(',', 'publication', pg_publication_rel.oid)
            FROM pg_publication_rel JOIN pg_class ON pg_class.oid = prrelid
            WHERE relnamespace = to_regnamespace('public')
        UNION ALL SELECT concat_ws(',', 'constraint', oid, xmin)
            FROM pg_constraint WHERE connamespace = to_regnamespace('public')
        UNION ALL SELECT concat_ws(',', 'type', oid, xmin)
            FROM pg_type WHERE typnamespace = to_regnamespace('public')
        UNION ALL SELECT concat_ws(',', 'function', oid, xmin)
            FROM pg_proc WHERE pronamespace = to_regnamespace('public')
        UNION ALL SELECT concat_ws(',', 'statistics', oid)
            FROM pg_statistic_ext WHERE stxnamespace = to_regnamespace('public')
        UNION ALL SELECT concat_ws(',', 'rights', oid)
            FROM pg_default_acl WHERE defaclnamespace = to_regnamespace('public')
    ) AS facts
)"""

PARK = rf"""
DO $$
DECLARE
    place oid := to_regnamespace('public');
    noted text[] := regexp_match(
        obj_description(place, 'pg_namespace'), '^tests (\w+) (\d+) (\w+)$');
    names text;
BEGIN
    DROP SCHEMA IF EXISTS parked CASCADE;
    IF noted IS NULL THEN
        RETURN;
    END IF;
    SELECT string_agg(oid::regclass::text, ', ') INTO names FROM pg_class
        WHERE relnamespace = place AND relkind IN ('r', 'p') AND oid > noted[2]::oid;
    IF names IS NOT NULL THEN
        EXECUTE 'DROP TABLE ' || names || ' CASCADE';
    END IF;
    SELECT string_agg(oid::regclass::text, ', ') INTO names FROM pg_class
        WHERE relnamespace = place AND relkind = 'r' AND pg_relation_size(oid) > 0;
    IF names IS NOT NULL THEN
        EXECUTE 'TRUNCATE ' || names || ' CASCADE';
    END IF;
    PERFORM setval(seqrelid::regclass, seqstart, false)
        FROM pg_sequence JOIN pg_class ON pg_class.oid = seqrelid WHERE relnamespace = place;
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
_SEEN = f"""
SELECT
    current_setting('is_superuser') = 'on',
    current_schema() = 'public' AND {_FACTS} = (
        SELECT md5(concat_ws(',', nspowner, nspacl)) FROM pg_namespace WHERE nspname = 'public'),
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
