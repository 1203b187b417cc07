/* The search of the site. It takes the place of the theme's worker, which demands every word.
   It speaks the messages of the theme: 0 the index, 1 ready, 2 a query, 3 its result, 4 failed.
   A record is a section of a page. Words of a title weigh most, then words of the path (the titles
   above it), then words of the text. A record without some of the words comes after those with all. */
"use strict";
(() => {
  const WEIGHTS = { title: 4, words: 3, path: 2, text: 1 };
  const FULL = 2, SAID = 1.5; // what is added if all of a question was typed, and if all that was typed is in one
  const EQUAL = 0.7, ALIKE = 0.45; // how well a word stands for another one
  const SAME_ROOT = 0.75; // how well a word stands for one with another ending
  const ONLY_TEXT = 0.75; // how much of a word a section has that says it in its text alone
  const ANSWERS = "answers/"; // pages that list what is answered about a subject
  const LOOKED = 20, OWN = 1; // of how many records a page of answers should have most, and what its own words count
  const PAGE_SIZE = 10;
  const LENGTH = 120; // words of an ordinary section
  const STOP = new Set(("a about an and are as at be by can do does for from how i if in into is it my of on or our " +
    "that the their this to was we what when which why will with you your me he she they them there has have had where " +
    "should would could want via am been so than then these those see " +
    "although though because since however therefore both either neither nor such most more less few must may might shall cannot could did doing being were whose whom whether unless during upon " +
    "about above below also too very quite rather actually really just even ever yet already perhaps maybe please ok").split(" "));
  // What other systems call it: these words are looked for, too.
  const PHRASES = [
    [/\bpartition(s|ing)? keys?\b|\bmessage ?group ?ids?\b|\brouting keys?\b/, "ordering key"],
    [/\b(hello world|quick ?start|get(ting)? started|first steps?|how (do|can|to)( i| we)? (start|begin)|beginners?)\b/, "tutorial order survives kill"],
    [/\bat[ -]least[ -]once\b|\b(two|2|several|multiple) times\b|\bsame message (again|twice)\b/, "twice duplicate"],
    [/\bsame (message|order|event|job|task)s?\b.*\b(again|twice|second)|\breceived? .*\b(again|twice)\b/, "same message second time duplicate"],
    [/\bsame (worker|consumer|user|customer|id|key|partition)\b/, "ordering key one user"],
    [/\b(keep|catch)(ing)? up\b|\btoo slow\b|\boverload/, "consumers keep up backpressure lag grows"],
    [/\b(every|all|each|no|any) (orders?|messages?|events?)\b.*\b(delivered|processed|consumed|arrived|lost|missing)\b|\bprove\b/, "reconciliation prove"],
    [/\b(simple|simplest|minimal|minimum|working|first|full) example\b|\bone file\b|\bsample\b/, "simplest example tutorial"],
    [/\bexactly[ -]once\b/, "twice promised"],
    [/\bfirst in,? first out\b/, "ordering key fifo"],
    [/\b(in|out of|keep|strict|total|message|event|random|wrong|right|correct|mixed)s? order(ing|ed)?\b|\border(ing)? (guarantee|per)|\bsequence\b/, "ordering order"],
    [/\b(first time|new ?comer|newbie|in (5|five|ten|15|fifteen) minutes|install and run)\b/, "tutorial quick start"],
    [/\b(re-?drive|redrive|re-?queue|reinject|resurrect)/, "send dead letter again"],
    [/\bdead[ -]?letter(s|ed|ing)?( queues?| exchanges?)?\b|\bdlx\b/, "dead letter"],
    [/\bconsumer[ -]lag\b|\b(queue|backlog) (depth|length|size)\b/, "far behind consumer group lag"],
    [/\bmulti-?tenan(t|cy)\b|\bper tenant\b/, "tenant several applications share schema of own"],
    [/\b(non|not|without|no)[ -]?root\b|\brunasnonroot\b/, "container user image"],
    [/\b(2pc|two[ -]phase|xa transactions?|distributed transactions?)\b/, "several databases"],
    [/\bfind (lost|missing)\b|\b(lost|missing) messages?\b/, "reconciliation"],
    [/\bdoes(n'?t| not) exist\b|\bno such (table|relation)\b|\bundefinedtable\b/, "missing table"],
    [/\bno module named\b|\bmodulenotfounderror\b|\bimporterror\b/, "module not installed"],
    [/\b(see|show|inspect|browse|view|watch) (the |my |all )?(queues?|messages|outbox|backlog)\b/, "console far behind pending"],
    [/^(?!.*(celery|background|rq\b|procrastinate)).*\b(tasks?|jobs?)\b/, "message handler"],
    [/\b(publish|emit|enqueu|dispatch)/, "send"],
    [/\b(subscrib|listen(er|ing)?\b|receiver)/, "consumer"],
    [/\bgo(lang)? (clients?|sdks?|programs?|services?|apps?|code)\b|\b(from|in) go\b/, "languages clients golang"],
    [/\b(stop|no|without|skip|never|not)( be| to)? retr/, "retries skipped reject"],
    [/\b(midnight|noon|weekly|daily|hourly|monthly|nightly|(mon|tues|wednes|thurs|fri|satur|sun)days?|(every|each) (second|minute|hour|day|night|week|month|\d+))\b/, "periodic cron schedule"],
    [/\b\d+ ?([kmg]i?b|bytes)\b/, "large size"],
    [/\b(best|optimal|ideal|right|recommended|good) (number|count|amount)\b/, "how many need"],
    [/\b(wait|run|start)s?\b.*\b(for|after|until) (the |an)?(first|other|previous|last)\b/, "chain steps"],
    [/\bwho (has )?(deleted|changed|removed|did|created|made|paused|retried)\b/, "audit"],
    [/\bwithout (losing|loss|lose)\b/, "safely graceful"],
  ];
  // Verbs of two words, and other sayings: what they mean stands for them.
  const SAYINGS = [
    [/\b(start|begin)(s|ing)? (all )?(over|again|afresh|anew)\b|\bfrom scratch\b/gi, "begin anew reset"],
    [/\buse[ds]? up\b|\b(ran|run|runs|running) out of\b/gi, "exhausted used limit"],
    [/\b(turn|switch|shut)(ed|ing|s)? (it )?off\b/gi, "disable"],
    [/\b(turn|switch)(ed|ing|s)? (it )?on\b/gi, "enable"],
    [/\b(get|getting|got) rid of\b|\bthrow(ing)? away\b/gi, "remove"],
    [/\bset(ting)? up\b/gi, "setup"],
    [/\b(make|making|be|am) sure\b/gi, "ensure"],
    [/\bfind(ing)? out\b|\bfigure out\b/gi, "find"],
    [/\bpick(ed|s)? up\b/gi, "receive"],
    [/\b(kick|fire)(ed|s|d)? off\b/gi, "send"],
    [/\b(fall|falls|fell|falling) behind\b/gi, "lag grows"],
    [/\bclean(ing)? up\b/gi, "cleanup"],
    [/\b(log|sign)(ging)? in\b/gi, "login"],
    [/\bback(ing)? up\b/gi, "backup"],
    [/\broll(ed|ing)? back\b/gi, "rollback"],
    [/\broll(ed|ing)? out\b/gi, "deploy"],
    [/\bfail(s|ed|ing)? over\b/gi, "failover"],
    [/\bat (the )?(same time|once)\b|\bsimultaneous(ly)?\b/gi, "parallel at the same time"],
    [/\bone (after|by) (the other|another|one)\b|\bsequentially\b|\bserially\b/gi, "one by one sequence"],
    [/\bmore than once\b/gi, "twice"],
    [/\b(right away|immediately|instantly)\b/gi, "at once fast"],
    [/\b(a lot|lots|tons|plenty) of\b/gi, "many"],
    [/\bnot (being )?(called|executed|run|invoked|triggered|picked|delivered|consumed|processed|received)\b/gi, "never called not received"],
    [/\b(no longer|any ?more|the whole|whole|entire|at all|in general|exactly what)\b/gi, " "],
    [/\b(on my (machine|laptop|computer|pc)|locally|on localhost)\b/gi, "local development"],
    [/\bout of memory\b/gi, "oom memory"],
    [/\btime[sd]? out\b/gi, "timeout"],
    [/\b(so|that) many\b/gi, "many"],
    [/\bkeep(s)? (an eye on|track of)\b/gi, "watch"],
    [/\bdeal(ing)? with\b|\bcope with\b/gi, "handle"],
    [/\bdepend(s|ing)? on\b/gi, "dependency wait"],
    [/\bhold(s|ing)? up\b/gi, "block"],
    [/\btak(e|es|ing) (too |very |so )?long\b/gi, "slow"],
  ];
  // Words that mean the same in this field, or nearly so in any: one counts almost as another.
  const EQUALS = [
    "send publish emit enqueue produce dispatch",
    "consume receive subscribe listen",
    "consumer subscriber listener receiver handler",
    "message event task job",
    "delete remove purge clear erase wipe discard",
    "stop halt quit",
    "start begin launch boot",
    "several multiple many",
    "alert notify notification inform tell",
    "error exception failure traceback",
    "retry redeliver reattempt requeue",
    "late slow slower delay latency",
    "save store persist",
    "lost lose missing disappear vanish",
    "stuck hang freeze stall",
    "status state",
    "setting option parameter configuration config",
    "number count amount many",
    "list show display print view",
    "check verify validate",
    "limit maximum max cap",
    "database db",
    "alive healthy running up",
    "single once",
    "user customer person",
    "wait pending queued",
    "big large huge bigger larger biggest",
    "fast quick speed faster",
    "move migrate transfer",
    "change edit modify alter",
    "create declare make",
    "find search locate lookup trace",
    "fix repair mend solve",
    "example sample demo",
    "reason why cause",
    "finish complete done succeed",
    "partition queue",
    "callback function",
    "process handle execute perform",
    "monitor observe watch",
    "peek browse inspect",
    "atomic atomically transaction transactional",
    "automatic automatically itself",
    "manual manually hand",
    "different other another",
    "dead failed",
    "machine host node server",
    "file folder directory disk path",
    "expire expiration ttl",
    "crash die kill exit",
    "install setup installation",
    "copy replicate replica",
    "prevent avoid forbid",
    "class method",
    "guarantee promise ensure",
    "update upgrade",
    "pipeline ci",
    "frontend browser react vue angular webpage",
    "email mail",
    "dev development developer",
    "prod production",
    "k8s kubernetes",
    "postgres postgresql",
    "repo repository",
    "auth authentication",
    "perf performance",
    "env environment",
    "docs documentation",
    "app application",
    "param parameter argument",
    "func function",
    "sync synchronous",
    "async asynchronous",
    "conn connection",
    "tx transaction",
    "msg message",
    "revoke cancel abort",
    "pause suspend",
    "resume continue",
    "wrong incorrect invalid",
    "endpoint view route",
    "microservice service",
    "history past earlier",
    "permission right privilege grant",
    "password credential",
    "periodic recurring scheduled",
    "postpone delay defer",
    "keep retain",
    "mock fake stub",
    "outage downtime unavailable",
    "hide mask redact",
    "speed throughput",
    "restart reboot",
    "rename renaming",
    "share sharing common",
    "old previous",
    "chain pipeline workflow",
    "priority urgent important",
    "dashboard console ui",
    "attempt retry try",
    "old older oldest",
    "new newer newest",
    "small smaller smallest tiny little",
    "long longer longest",
    "grow grows growing increase",
    "ready finished completed",
  ];
  // Words that users type, and the words of our pages for them. Each line holds words of one meaning.
  const SYNONYMS = [
    "size limit big large bytes length maximum",
    "ordering sequence fifo sharding",
    "customer key shard sharding",
    "grow growing grows pending backlog lag unsent waiting",
    "tls ssl encrypt encryption certificate https",
    "dlq dead poison",
    "duplicate twice idempotent dedupe deduplication",
    "schedule periodic cron",
    "delay later postpone",
    "env environment variable",
    "crash kill killed die",
    "error fail failure failed",
    "auth authentication login password account secret credentials user",
    "acl policy permission right",
    "log logging logs",
    "monitor monitoring prometheus metrics grafana",
    "install installation extras pip",
    "k8s kubernetes deploy deployment docker container",
    "postgres postgresql psql",
    "async asyncio asynchronous",
    "remove delete purge clean cleanup retention",
    "upgrade update version migrate",
    "retry retries again resend",
    "settings configuration configure config",
    "throttle quota ratelimit",
    "schema pydantic json",
    "isolation serializable",
    "failover over",
    "ha availability redundant redundancy slave replica",
    "latency milliseconds",
    "concurrency parallel simultaneous",
    "lost loss gone",
    "grace graceful sigterm stop",
    "huge volume million scale many",
    "slow hang lag",
    "down unavailable away offline outage",
    "restart downtime maintenance",
    "gdpr privacy erase personal",
    "replay reprocess rerun again reset rewind",
    "oom kill dies",
    "hostile malicious attacker threat",
    "pickle pickling unpickled deserialization deserialize payload",
    "encryption encrypt encrypted",
    "licence license",
    "benchmark throughput speed fast performance",
    "dst daylight clock timezone",
    "tenant tenancy namespace quota",
    "runbook troubleshoot troubleshooting oncall arrive alert",
    "hpa keda autoscale autoscaling scale lag worker",
    "bulk backfill send_many",
    "patroni standby replica slave primary",
    "stripe payment external api",
    "least privilege right grant role",
    "priority priorities urgent",
    "visibility lease claim renewed invisible",
    "mask hide redact filter",
    "staging copy",
    "phone telemetry home",
    "flower dashboard",
    "stolen leak leaked compromised",
    "block blocks stuck holds skip",
    "move migrate sqlite",
    "java golang nodejs rust php ruby dotnet language",
    "backpressure slow overload flood",
    "slack webhook teams pagerduty opsgenie notifier",
    "automatically automatic elected operator",
    "compare reconcile reconciliation difference auditor prove proof",
    "jaeger tempo zipkin opentelemetry otel tracing trace span",
    "email mail smtp",
    "idle timeout hang",
    "savepoint nested begin_nested",
    "checksum corrupt corruption damaged broken",
    "mypy pyright typing type",
    "sentry exception tracker",
    "cost costs price",
    "rotate renew replace",
    "compression compress gzip lz4 zstd",
    "debug debugger breakpoint pdb",
  ];

  function stem(word) {
    let w = word;
    if (w.length > 4 && /(ies|ied)$/.test(w)) w = w.slice(0, -3) + "y";
    else if (w.length > 3 && /[^su]s$/.test(w)) w = w.slice(0, -1);
    if (w.length > 5 && w.endsWith("ing")) w = w.slice(0, -3).replace(/([^lsz])\1$/, "$1");
    else if (w.length > 4 && w.endsWith("ed")) w = w.slice(0, -2).replace(/([^lsz])\1$/, "$1");
    else if (w.length > 3 && w.endsWith("ss")) return w;
    else if (w.length > 7 && w.endsWith("ation")) w = w.slice(0, -3); // migration, migrate
    else if (w.length > 7 && w.endsWith("ption")) w = w.slice(0, -3); // encryption, encrypt
    return w.length > 3 && w.endsWith("e") ? w.slice(0, -1) : w;
  }

  // Words that say little about what is asked: they count half. The number of a version does, too.
  const LIGHT_WORDS = new Set(("behaviour behave whole entire currently usually often several certain different kind type " +
    "sort case reason good need already use using used get got getting make makes made put set give take takes keep let lets " +
    "happen happens happened work works working way possible want know like only just still any some every each all other " +
    "one thing something anything now also per many much very really within between " +
    "able try go come comes goes look show help please proper properly correct best right easy simple handle handled own")
    .split(" ").map(stem));

  // What is left of a word without its endings: compatible and compatibility, deploy and deployment.
  const ENDING = /(?:ibility|ability|ible|able|izations?|isations?|ations?|ators?|ments?|ions?|ives?|ers?|ors?|ances?|ences?|ness|ity|ly|al|ing|ed|s|e|y)$/;
  const root = (word) => {
    let w = word;
    for (let next = w.replace(ENDING, ""); next.length >= 5 && next !== w; next = w.replace(ENDING, "")) w = next;
    return w;
  };

  const heaviness = (s) => (LIGHT_WORDS.has(s) || /^\d+(\.\d+)+$/.test(s) ? 0.5 : 1);

  // Between signs, and in camelCase: at least three letters, so that MySQL and PostgreSQL stay whole.
  const PART = /\p{Lu}?\p{Ll}{2,}(?=\p{Lu}\p{Ll}{2})|[\p{L}\p{N}]+/gu;

  /* Calls take(word, start, end, isPart, isJoined) for each word outside tags. A name such as
     RELIABLE_MQ_APP, wheel.cfg or consumeFromWhere is a word, and so is each part of it. */
  function words(text, take) {
    const finder = /<[^>]*>|&[a-z#0-9]+;|[\p{L}\p{N}]+(?:[_.-][\p{L}\p{N}]+)*/gu;
    for (let found; (found = finder.exec(text)); ) {
      const whole = found[0];
      if (whole[0] === "<" || whole[0] === "&") continue;
      const start = found.index;
      const parts = [...whole.matchAll(PART)].filter((part) => part[0].length < whole.length);
      for (const part of parts) take(part[0].toLowerCase(), start + part.index, start + part.index + part[0].length, true);
      take(whole.toLowerCase(), start, start + whole.length, false, parts.length > 0);
    }
  }

  // Whoever asks wants to do something: an answer comes before code and before what is known of it.
  const PLACES = [
    [/^(evidence|project)\//, 0.4],
    [/^(reference\/api|examples)\//, 0.6],
    [/^how-to\/questions[^#]*$/, 0.4], // the head of a page of questions
    [/^reference\/(glossary|log_events|broker_properties|client_settings)/, 0.7],
    [/^how-to\/(questions|error_texts)/, 1.3],
  ];
  // Who asks for the meaning of a word gets the glossary.
  const MEANING = /^(what('s| is| are|s)( an?| the)?|meaning of|definition of|define) [\w-]+( [\w-]+)?( and [\w-]+( [\w-]+)?)?\??$|\b(meaning|definition|glossary)\b|^what do(es)? .* mean/;

  let items = [];
  let index = new Map(); // stem -> Map(record -> [weight of title, path, text])
  let names = new Map(); // first two letters -> stems, for prefixes
  let questions = []; // record -> what it answers: the stems of its title, of each question in it, of each phrase
  let roots = new Map(); // root -> stems
  const synonyms = new Map(); // stem -> Map(stem of its meaning -> how well)

  function learn(data) {
    items = data.items;
    index = new Map();
    names = new Map();
    roots = new Map();
    questions = [];
    items.forEach((item, id) => {
      const seen = new Map();
      for (const field of Object.keys(WEIGHTS)) {
        const text = field === "path" ? (item.path || []).join(" / ") : item[field] || "";
        words(text, (word) => {
          const s = stem(word);
          const now = seen.get(s) || { title: 0, words: 0, path: 0, text: 0 };
          now[field] += 1;
          seen.set(s, now);
        });
      }
      const phrases = [item.title, ...item.title.split(/[?:()]/), ...(item.words || "").split(",")];
      questions.push(phrases.map(meaning).filter((own) => own.size));
      let size = 0;
      for (const counts of seen.values()) size += counts.text;
      // A long table has every word once: each says less about it.
      const part = 1 / (0.7 + 0.3 * Math.min(size / LENGTH, 6));
      for (const [s, counts] of seen) {
        // A word that comes again says a little more, a long table of it does not say all.
        const heading = Math.max(WEIGHTS.title * Math.min(counts.title, 1), WEIGHTS.words * Math.min(counts.words, 1));
        const score = heading + WEIGHTS.path * Math.min(counts.path, 1) +
          WEIGHTS.text * part * Math.min(1 + Math.log2(Math.max(counts.text, 0.5)), 3.5);
        if (!index.has(s)) index.set(s, new Map());
        index.get(s).set(id, score);
      }
    });
    for (const s of index.keys()) {
      const head = s.slice(0, 2);
      if (!names.has(head)) names.set(head, []);
      names.get(head).push(s);
      const r = root(s);
      if (!roots.has(r)) roots.set(r, []);
      roots.get(r).push(s);
    }
    for (const [lines, how] of [[SYNONYMS, ALIKE], [EQUALS, EQUAL]]) {
      for (const line of lines) {
        const group = line.split(" ").map(stem);
        for (const s of group) {
          if (!synonyms.has(s)) synonyms.set(s, new Map());
          for (const other of group) if (other !== s) synonyms.get(s).set(other, how);
        }
      }
    }
  }

  /* Returns the stems of a phrase, without those of words that say nothing. */
  function meaning(phrase) {
    const own = new Set();
    words(phrase, (word, start, end, isPart, isJoined) => {
      if (!STOP.has(word) && !isPart) own.add(stem(word));
    });
    return own;
  }

  const weightOf = (s) => Math.log(1 + items.length / (1 + (index.get(s) || new Map()).size));

  /* Returns what a typed word says: the fewer records have it or its equals, the more. */
  function weightOfWord(found) {
    const same = [...found].filter(([, how]) => how >= EQUAL).map(([s]) => s);
    if (same.length) return Math.max(Math.log(1 + items.length / (1 + Math.max(...same.map((s) => index.get(s).size)))), 1);
    return found.size ? Math.max(...[...found].map(([s]) => weightOf(s)), 1) : 3;
  }

  function nearest(s) { // one wrong, missing, added or exchanged letter
    if (s.length < 5) return [];
    const found = [];
    for (const other of index.keys()) {
      if (Math.abs(other.length - s.length) > 1 || other[0] !== s[0]) continue;
      let a = 0;
      while (a < s.length && s[a] === other[a]) a++;
      const rest = s.slice(a), near = other.slice(a);
      if (rest.slice(1) === near.slice(1) || rest.slice(1) === near || rest === near.slice(1) ||
        (rest.slice(2) === near.slice(2) && rest[0] === near[1] && rest[1] === near[0])) found.push(other);
    }
    return found;
  }

  /* Returns what a typed word matches: [stem, how well (0 to 1)]. */
  function matches(typed) {
    const s = stem(typed);
    const found = new Map();
    const add = (other, how) => found.set(other, Math.max(how, found.get(other) || 0));
    if (index.has(s)) add(s, 1);
    if (typed.length >= 2) {
      for (const other of names.get(typed.slice(0, 2)) || []) {
        if (other !== s && other.startsWith(s)) add(other, index.has(s) ? 0.25 : 0.8);
      }
    }
    // A metric's name without its prefix: dead_letters_open.
    if (found.size === 0 && typed.includes("_")) for (const other of index.keys()) if (other.includes(s)) add(other, 0.9);
    if (typed.length > 2) for (const [other, how] of synonyms.get(s) || []) if (index.has(other)) add(other, how);
    for (const other of roots.get(root(s)) || []) if (other !== s) add(other, SAME_ROOT);
    if (found.size === 0) for (const other of nearest(s)) add(other, 0.5);
    return found;
  }

  function wanted(input) {
    const typed = [];
    words(input, (word, start, end, part, joined) => typed.push({ word, start, end, part, joined }));
    // A whole name that a page has is looked for as it is; of an unknown one, its parts.
    const has = (word) => index.has(stem(word)) || (word.includes("_") && [...index.keys()].some((s) => s.includes(stem(word))));
    const known = typed.filter((each) => !each.part && (each.joined ? has(each.word) : true));
    // A dotted, hyphenated or camelCase name that hardly any page has: its parts, too.
    const rare = (whole) => whole.joined && !whole.word.includes("_") && (index.get(stem(whole.word)) || new Map()).size < 8;
    const inside = (each) => known.some((whole) => whole.start <= each.start && each.end <= whole.end && !rare(whole));
    const all = typed.filter((each) => (each.part ? !inside(each) : known.includes(each)));
    const content = all.filter((each) => !STOP.has(each.word));
    return (content.length ? content : all).map((each) => each.word);
  }

  /* The third is the page of answers that has most of what comes next: who finds nothing above it finds the
     question there. Its own words count, too. */
  function withAnswers(ranked) {
    const answers = ranked.filter(({ id }) => items[id].location.startsWith(ANSWERS));
    const others = ranked.filter(({ id }) => !items[id].location.startsWith(ANSWERS));
    const next = new Map(others.slice(0, LOOKED).map(({ id, value }) => [items[id].location, value]));
    let best, most = 0;
    for (const each of answers) {
      let sum = OWN * each.value;
      for (const section of items[each.id].sections || []) sum += next.get(section) || 0;
      if (sum > most) [best, most] = [each, sum];
    }
    if (best) others.splice(2, 0, best);
    return others;
  }

  function found(input) {
    const low = input.toLowerCase();
    const plain = SAYINGS.reduce((text, [saying, words]) => text.replace(saying, words), input);
    const meant = PHRASES.filter(([said]) => said.test(low)).map(([, words]) => words);
    const typed = [...new Set(wanted([plain, ...meant].join(" ")))];
    const asked = typed.map((word) => ({ word, found: matches(word) }));
    let total = 0;
    const records = new Map(); // record -> { score, weight of the words that it has }
    for (const { word, found } of asked) {
      const weight = weightOfWord(found) * heaviness(stem(word));
      total += weight;
      const best = new Map();
      for (const [s, how] of found) {
        for (const [id, score] of index.get(s)) {
          const value = how * score;
          if (value > (best.get(id) || [0])[0]) best.set(id, [value, how]);
        }
      }
      for (const [id, [value, how]] of best) {
        const now = records.get(id) || { score: 0, weight: 0 };
        now.score += weight * value;
        const place = value / how >= WEIGHTS.path ? 1 : ONLY_TEXT;
        now.weight += weight * (how >= EQUAL ? 1 : how >= ALIKE ? 0.8 : 0.6) * place;
        records.set(id, now);
      }
    }
    const stems = new Set(typed.map(stem));
    const near = new Map(); // stem -> the weight of the typed word that it stands for
    for (const { word, found } of asked) {
      const own = [...found].filter(([, how]) => how >= ALIKE);
      const weight = own.length ? weightOfWord(found) * heaviness(stem(word)) : 0;
      for (const [s, how] of own) if (weight * how > (near.get(s) || [0])[0]) near.set(s, [weight * how, how]);
    }
    const ranked = [];
    const isMeaning = MEANING.test(low.trim());
    for (const [id, { score, weight }] of records) {
      const item = items[id];
      let value = score * Math.pow(weight / total, 1.6);
      if (item.level === 1) value *= 1.5;
      else if (!item.text) value *= 0.4; // a title above others answers nothing
      // The more of a question was asked for, and of what was asked for is in one, the more this is its answer.
      let best = 1;
      for (const own of questions[id]) {
        let said = 0, same = 0, all = 0;
        for (const s of own) {
          const weight = weightOf(s) * heaviness(s);
          all += weight;
          if (!near.has(s)) continue;
          const how = stems.has(s) ? 1 : near.get(s)[1];
          said += near.get(s)[0];
          same += how * weight;
        }
        best = Math.max(best, (1 + FULL * same / all) * (1 + SAID * Math.min(1, said / total)));
      }
      value *= best;
      for (const [place, share] of PLACES) if (place.test(item.location)) value *= share;
      if (isMeaning && weight > 0.7 * total && item.location.startsWith("reference/glossary")) value *= 40;
      ranked.push({ id, value });
    }
    ranked.sort((a, b) => b.value - a.value || a.id - b.id);
    // Several sections of one page must not hide other pages. A page of questions has many subjects.
    const times = new Map();
    for (const each of ranked) {
      const page = items[each.id].location.split("#")[0];
      const before = times.get(page) || 0;
      times.set(page, before + 1);
      each.value *= Math.pow(/^how-to\/(questions|error_texts)/.test(page) ? 0.85 : 0.75, before);
    }
    ranked.sort((a, b) => b.value - a.value || a.id - b.id);
    return { ranked: withAnswers(ranked), asked };
  }

  function ranges(text, asked) {
    const shown = [];
    words(text, (word, start, end) => {
      const s = stem(word);
      for (const each of asked) {
        const how = each.found.get(s);
        if (how === undefined || (each.word.length > 2 && how < 0.3 && !word.startsWith(each.word))) continue;
        const last = shown[shown.length - 1];
        const value = word.startsWith(each.word) ? each.word.length : -1;
        if (last && last.start <= start && end <= last.end) return;
        while (shown.length && start <= shown[shown.length - 1].start) shown.pop();
        shown.push({ start, end, value });
        return;
      }
    });
    return shown;
  }

  function result(query) {
    const input = typeof query.input === "string" ? query.input : "";
    const { ranked, asked } = found(input);
    const from = (query.page && query.page.from) || 0;
    const page = (start) => ({ id: 0, size: PAGE_SIZE, from: start });
    return {
      items: ranked.slice(from, from + PAGE_SIZE).map(({ id, value }) => ({
        id,
        matches: ["title", "path", "text"].map((field) => ({
          id,
          field,
          score: value,
          value: {
            text: {},
            highlight: { ranges: ranges(field === "path" ? (items[id].path || []).join("") : items[id][field] || "", asked) },
          },
        })),
      })),
      query: { select: {}, values: [] },
      pagination: {
        total: ranked.length,
        prev: from >= PAGE_SIZE ? page(from - PAGE_SIZE) : undefined,
        next: from + PAGE_SIZE < ranked.length ? page(from + PAGE_SIZE) : undefined,
      },
      aggregations: [],
    };
  }

  self.onmessage = (event) => {
    try {
      if (event.data.type === 0) {
        learn(event.data.data);
        self.postMessage({ type: 1 });
      } else if (event.data.type === 2) {
        self.postMessage({ type: 3, data: result(event.data.data) });
      }
    } catch (error) {
      self.postMessage({ type: 4 });
    }
  };
})();
