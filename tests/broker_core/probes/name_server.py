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

NAME_SERVER = [
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
