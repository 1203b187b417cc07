// The pages can be read without this file. It refreshes what is live, and gives two keys:
// "/" leads to the search, and Escape leaves it.

const WAIT_MAX = 60;

function refreshed(part) {
  const base = Number(part.dataset.seconds) || 5;
  let wait = base;
  async function turn() {
    let note = "";
    const busy = part.contains(document.activeElement) && document.activeElement !== document.body;
    if (document.visibilityState === "visible" && !busy) {
      try {
        const answer = await fetch(part.dataset.live, { headers: { Accept: "text/html" } });
        if (answer.redirected || answer.status === 404) { location.reload(); return; }
        if (!answer.ok) throw new Error(String(answer.status));
        const made = new DOMParser().parseFromString(await answer.text(), "text/html");
        part.replaceChildren(...made.body.childNodes);
        const title = part.querySelector("#verdict span");
        if (title) document.title = title.textContent + document.title.replace(/^.*(?= · )/, "");
        const end = part.querySelector("[data-live-end]");
        if (end) { document.title = document.title.replace(/: running(?= · )/, `: ${end.dataset.liveEnd}`); return; }
        wait = base;
        note = `, again every ${base} s`;
      } catch {
        wait = Math.min(wait * 2, WAIT_MAX);
        note = `; the console does not answer, next try in ${wait} s`;
      }
    } else if (busy) {
      note = "; waits while you are in it";
    }
    const place = part.querySelector("[data-live-note]");
    if (place) place.textContent = note;
    setTimeout(turn, wait * 1000);
  }
  setTimeout(turn, wait * 1000);
}

document.querySelectorAll("[data-live]").forEach(refreshed);

const box = document.querySelector("#q");
document.addEventListener("keydown", (event) => {
  const typing = event.target instanceof Element && event.target.closest("input, textarea, select");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey && box) {
    event.preventDefault();
    box.focus();
    box.select();
  } else if (event.key === "Escape" && event.target === box) {
    box.blur();
  }
});

const mine = document.querySelector('.menu [aria-current="page"]');
if (mine && mine.parentElement) mine.parentElement.scrollIntoView({ block: "nearest", inline: "center" });
