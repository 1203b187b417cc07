"""What tools and brokers ask a name server: routes, lists, settings, permissions."""

from tests.broker_core.probes.asking import Probe, body_of

from reliable_mq.wire.codes import RequestCode as Ask

ROUTE = Ask.GET_ROUTEINFO_BY_TOPIC
CLUSTER = {"cluster": "DefaultCluster"}
MADE_ROUTE = body_of(
    {
        "queueDatas": [
            {"brokerName": "apache", "readQueueNums": 2, "writeQueueNums": 3, "perm": 6},
        ]
    }
)

VERSION = {"counter": 1, "stateVersion": 0, "timestamp": 5}
ABSENT = {"brokerName": "b", "brokerAddr": "127.0.0.1:1", "clusterName": "c", "brokerId": 0}
WITHOUT_TOPICS = body_of(
    {
        "filterServerList": [],
        "topicConfigSerializeWrapper": {"dataVersion": VERSION, "topicConfigTable": {}},
    }
)


def version(**changes: object) -> Probe:
    """Return the question whether the name server knows a broker's topics of a version."""
    body = body_of({**VERSION, **changes})
    name = f"a broker's version {changes}"
    return Probe(name, Ask.QUERY_DATA_VERSION, ABSENT, body, shows_all=True)


REGISTRATIONS = [
    version(counter=1, timestamp=7),
    Probe("a heartbeat of no broker", Ask.BROKER_HEARTBEAT, ABSENT, shows_all=True),
    Probe("no broker leaves", Ask.UNREGISTER_BROKER, ABSENT, shows_all=True),
    Probe("a broker comes", Ask.REGISTER_BROKER, ABSENT, WITHOUT_TOPICS, shows_all=True),
    version(),
    version(counter=2),
    Probe("a broker's heartbeat", Ask.BROKER_HEARTBEAT, ABSENT, shows_all=True),
    Probe(
        "a broker comes with a wrong checksum",
        Ask.REGISTER_BROKER,
        {**ABSENT, "bodyCrc32": 1},
        WITHOUT_TOPICS,
        shows_all=True,
    ),
    Probe(
        "a broker of no id comes",
        Ask.REGISTER_BROKER,
        {**ABSENT, "brokerId": None},
        WITHOUT_TOPICS,
        is_bug_there=True,
    ),
    Probe("a broker leaves", Ask.UNREGISTER_BROKER, ABSENT, shows_all=True),
]

NAME_SERVER = [
    *REGISTRATIONS,
    Probe("all topics", Ask.GET_ALL_TOPIC_LIST_FROM_NAMESERVER),
    Probe("all settings", Ask.GET_NAMESRV_CONFIG),
    Probe("the route to the template", ROUTE, {"topic": "TBW102"}, shows_body=True),
    Probe(
        "the route in standard JSON",
        ROUTE,
        {"topic": "TBW102", "acceptStandardJsonOnly": "true"},
        shows_body=True,
    ),
    Probe("the route to nothing", ROUTE, {"topic": "nowhere"}),
    Probe("the route to no topic", ROUTE, is_bug_there=True),
    Probe("the cluster", Ask.GET_BROKER_CLUSTER_INFO, shows_body=True),
    Probe(
        "topics of the cluster",
        Ask.GET_TOPICS_BY_CLUSTER,
        CLUSTER,
        shows_body=True,
        differs="Apache makes a topic for retries of a group with an illegal name, and refuses it",
    ),
    Probe("topics of no cluster", Ask.GET_TOPICS_BY_CLUSTER, {"cluster": "x"}, shows_body=True),
    Probe("system topics", Ask.GET_SYSTEM_TOPIC_LIST_FROM_NS, shows_body=True),
    Probe("unit topics", Ask.GET_UNIT_TOPIC_LIST, shows_body=True),
    Probe("topics with units", Ask.GET_HAS_UNIT_SUB_TOPIC_LIST, shows_body=True),
    Probe("topics with units only", Ask.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, shows_body=True),
    Probe("a route is made", Ask.REGISTER_TOPIC_IN_NAMESRV, {"topic": "routed"}, MADE_ROUTE),
    Probe("the route that was made", ROUTE, {"topic": "routed"}, shows_body=True),
    Probe("the route goes", Ask.DELETE_TOPIC_IN_NAMESRV, {"topic": "routed"}),
    Probe("the route that is gone", ROUTE, {"topic": "routed"}),
    Probe("no route goes", Ask.DELETE_TOPIC_IN_NAMESRV, {"topic": "nowhere"}),
    Probe(
        "a route goes from a cluster",
        Ask.DELETE_TOPIC_IN_NAMESRV,
        {"topic": "nowhere", "clusterName": "DefaultCluster"},
    ),
    Probe("a setting", Ask.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "v"}),
    Probe("it is kept", Ask.GET_KV_CONFIG, {"namespace": "n", "key": "k"}, shows=("value",)),
    Probe("its namespace", Ask.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"}, shows_body=True),
    Probe("no setting", Ask.GET_KV_CONFIG, {"namespace": "n", "key": "x"}),
    Probe("no namespace", Ask.GET_KVLIST_BY_NAMESPACE, {"namespace": "x"}),
    Probe("a setting of nothing", Ask.PUT_KV_CONFIG, {"value": "v"}),
    Probe("it goes", Ask.DELETE_KV_CONFIG, {"namespace": "n", "key": "k"}),
    Probe("it is gone", Ask.GET_KV_CONFIG, {"namespace": "n", "key": "k"}),
    Probe(
        "nobody's permission goes",
        Ask.WIPE_WRITE_PERM_OF_BROKER,
        {"brokerName": "nobody"},
        shows=("wipeTopicCount",),
    ),
    Probe(
        "nobody's permission comes back",
        Ask.ADD_WRITE_PERM_OF_BROKER,
        {"brokerName": "nobody"},
        shows=("addTopicCount",),
    ),
    Probe(
        "a broker's members",
        Ask.GET_BROKER_MEMBER_GROUP,
        {"clusterName": "DefaultCluster", "brokerName": "apache"},
        shows_body=True,
    ),
    Probe(
        "nobody's members",
        Ask.GET_BROKER_MEMBER_GROUP,
        {"clusterName": "DefaultCluster", "brokerName": "nobody"},
        shows_body=True,
    ),
    Probe("a forbidden setting", Ask.UPDATE_NAMESRV_CONFIG, {}, b"kvConfigPath=x"),
    Probe("a switch", Ask.UPDATE_NAMESRV_CONFIG, {}, b"enableTopicList=false"),
    Probe("topics switched off", Ask.GET_TOPICS_BY_CLUSTER, CLUSTER),
    Probe("units switched off", Ask.GET_UNIT_TOPIC_LIST),
    Probe("a request that there is not", Ask.SET_COMMITLOG_READ_MODE),
]
