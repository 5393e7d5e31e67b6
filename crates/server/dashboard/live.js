// The one stream from the plane.

import { forget, hole, note } from "./history.js";
import { headers } from "./kept.js";
import { key, known, now } from "./known.js";
import { takeRemarks } from "./remarks.js";

const SILENCE = 12_000; // the plane says something every 5 s: one that is silent for this long is gone
const HIDDEN = 5_000; // a page that nobody sees for this long lets go: a browser has few connections to one plane

/** What a refusal says, and what to do about it, in the plane's own words. */
export async function refusal(response) {
  const { error } = await response.json().catch(() => ({}));
  return error ? [error.message, error.next].filter(Boolean).join("; ") : `kvplane answers ${response.status}`;
}

/**
 * Follows the plane while the page is seen. `tell` gets "plane", "fleet", "remarks" and "overview" when there is news, and ("live"), ("lost", why),
 * ("locked", why) or ("resting") when the connection changes. Returns a function that connects again at once.
 */
export function follow(tell) {
  let wake = () => {};
  let end = new AbortController();
  let resting = false;
  let locked = false;
  let timer;
  const look = () => {
    clearTimeout(timer);
    if (document.hidden) {
      timer = setTimeout(() => {
        resting = true;
        end.abort();
      }, HIDDEN);
    } else {
      resting = false;
      if (!locked) wake();
    }
  };
  document.addEventListener("visibilitychange", look);
  (async () => {
    let pause = 500;
    for (;;) {
      end = new AbortController();
      const ended = await read(tell, end, () => (pause = 500)).catch(() => ({ state: "lost", why: "no answer" }));
      if (known.linked) hole();
      known.linked = false;
      const { state, why } = resting ? { state: "resting" } : ended;
      locked = state === "locked";
      tell(state, why);
      await new Promise((resolve) => {
        wake = resolve;
        // Whoever is not let in is asked for a token, and not let in by trying again.
        if (state === "lost") setTimeout(() => resting || resolve(), pause);
      });
      pause = Math.min(pause * 2, 5_000);
    }
  })();
  look();
  return () => wake();
}

async function read(tell, end, reached) {
  const listen = () => setTimeout(() => end.abort(), SILENCE);
  let timer = listen();
  try {
    const response = await fetch("v1/watch", { headers: headers(), cache: "no-store", signal: end.signal });
    if (!response.ok) {
      // Where another key would help, the plane says so.
      return { state: response.headers.has("www-authenticate") ? "locked" : "lost", why: await refusal(response) };
    }
    const text = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await text.read();
      if (done) return { state: "lost", why: "the connection was closed" };
      clearTimeout(timer);
      timer = listen();
      known.heard = now();
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) take(event, tell, reached);
    }
  } finally {
    clearTimeout(timer);
    end.abort(); // nothing of it is read any more
  }
}

function take(event, tell, reached) {
  let name = "";
  let data = "";
  for (const line of event.split("\n")) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    if (line.startsWith("data:")) data += line.slice(5);
  }
  if (!data) return;
  const said = JSON.parse(data);
  if (name === "plane") {
    if (known.plane?.id !== said.id) {
      // Another run has another history.
      forget(() => false);
      known.remarks = [];
    }
    known.plane = said;
    known.linked = true;
    known.remarksAnew = true;
    reached();
    tell("live");
  }
  if (name === "fleet") takeFleet(said);
  if (name === "remarks") takeRemarks(said);
  if (name === "overview") Object.assign(known, { queries: said.queries, duplication: said.duplication, problems: said.problems });
  tell(name);
}

/** Engines in the order in which they came, each with its ranks in order: a rank may come after others of its engine. */
function inOrder(ranks) {
  const engines = new Map();
  for (const rank of ranks.values()) engines.set(rank.engine, [...(engines.get(rank.engine) ?? []), rank]);
  const sorted = [...engines.values()].flatMap((all) => all.toSorted((one, two) => one.rank - two.rank));
  return new Map(sorted.map((rank) => [key(rank), rank]));
}

function takeFleet({ whole, unix_ms, ranks, gone, links }) {
  known.skew = unix_ms - Date.now();
  if (whole) known.ranks = new Map();
  const before = known.ranks.size;
  for (const rank of ranks) known.ranks.set(key(rank), rank);
  const others = whole || gone || known.ranks.size !== before;
  for (const rank of gone ?? []) known.ranks.delete(key(rank));
  if (others && !whole) known.ranks = inOrder(known.ranks);
  if (links) known.links = links;
  if (others || links) known.members += 1;
  if (whole || gone) forget((name) => known.ranks.has(name));
  note(ranks, unix_ms);
}
