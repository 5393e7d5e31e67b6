// The one stream from the plane: what it says, and what was said before.

const HISTORY = 600; // samples a rank keeps: five minutes
const REMARKS = 1024; // kept in all, and of one rank when there is no more room
const REMARKS_OF_ONE = 64;
const SILENCE = 40_000; // the plane says something every 15 s: one that is silent for this long is gone
const TOKEN = "kvplane-token";

/** Everything that is known. */
export const known = {
  plane: null, // {id, version}
  ranks: new Map(), // "engine/rank" -> the rank as the plane tells it
  history: new Map(), // "engine/rank" -> [{at, rate, blocks}]
  remarks: [], // oldest first
  skew: 0, // the plane's clock, less ours
  members: 0, // rises when other ranks are there
};

export const key = (rank) => `${rank.engine}/${rank.rank}`;
export const now = () => Date.now() + known.skew;

/** The token is kept for this tab alone, and is never part of an address. */
export function setToken(token) {
  if (token) sessionStorage.setItem(TOKEN, token);
  else sessionStorage.removeItem(TOKEN);
}

export const hasToken = () => sessionStorage.getItem(TOKEN) !== null;

/** What every request to the plane carries. */
export function headers() {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { authorization: `Bearer ${token}` } : {};
}

/** What a refusal says, and what to do about it, in the plane's own words. */
export async function refusal(response) {
  const { error } = await response.json().catch(() => ({}));
  return error ? [error.message, error.next].filter(Boolean).join("; ") : `the plane answers ${response.status}`;
}

/**
 * Follows the plane until the page is closed. `tell` gets "plane", "fleet" and "remarks" when there is news, and ("live"), ("lost", why) or
 * ("locked", why) when the connection changes. Returns a function that connects again at once.
 */
export function follow(tell) {
  let wake = () => {};
  (async () => {
    let pause = 500;
    for (;;) {
      const ended = await read(tell, () => (pause = 500)).catch(() => ({ state: "lost", why: "it does not answer" }));
      tell(ended.state, ended.why);
      await new Promise((resolve) => {
        wake = resolve;
        // Whoever is not let in is asked for a token, and not let in by trying again.
        if (ended.state === "lost") setTimeout(resolve, pause);
      });
      pause = Math.min(pause * 2, 5_000);
    }
  })();
  return () => wake();
}

async function read(tell, reached) {
  const given_up = new AbortController();
  let timer = setTimeout(() => given_up.abort(), SILENCE);
  try {
    const response = await fetch("v1/watch", { headers: headers(), cache: "no-store", signal: given_up.signal });
    if (!response.ok) {
      const locked = response.status === 401 || response.status === 403;
      return { state: locked ? "locked" : "lost", why: await refusal(response) };
    }
    const text = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await text.read();
      if (done) return { state: "lost", why: "it ended the connection" };
      clearTimeout(timer);
      timer = setTimeout(() => given_up.abort(), SILENCE);
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) take(event, tell, reached);
    }
  } finally {
    clearTimeout(timer);
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
    known.plane = said;
    known.remarks = []; // what is still known of them comes next
    reached();
    tell("live");
  }
  if (name === "fleet") takeFleet(said);
  if (name === "remarks") takeRemarks(said);
  tell(name);
}

function takeFleet({ whole, unix_ms, ranks }) {
  known.skew = unix_ms - Date.now();
  if (whole) {
    known.ranks = new Map(ranks.map((rank) => [key(rank), rank]));
    known.members += 1;
    for (const gone of [...known.history.keys()].filter((name) => !known.ranks.has(name))) known.history.delete(gone);
  } else {
    for (const rank of ranks) known.ranks.set(key(rank), rank);
  }
  // Every rank, also those that did not change.
  for (const [name, rank] of known.ranks) {
    const samples = known.history.get(name) ?? [];
    const last = samples.at(-1);
    // While nothing changed nothing was told: it stayed as it was until just now.
    if (last && unix_ms - last.at > 1000) samples.push({ ...last, at: unix_ms - 500 });
    samples.push({ at: unix_ms, rate: rank.events_per_s, blocks: rank.blocks });
    if (samples.length > HISTORY) samples.splice(0, samples.length - HISTORY);
    known.history.set(name, samples);
  }
}

function takeRemarks(remarks) {
  for (const remark of remarks) {
    // What happens again moves to the end under a new number.
    if (remark.times > 1) {
      const same = (other) =>
        other.engine === remark.engine && other.rank === remark.rank && other.words === remark.words && other.times < remark.times;
      const at = known.remarks.findLastIndex(same);
      if (at >= 0) known.remarks.splice(at, 1);
    }
    known.remarks.push(remark);
  }
  while (known.remarks.length > REMARKS) forgetOne();
}

/** As the plane does it: the oldest of a rank that has more than its part goes, or else the oldest. */
function forgetOne() {
  const told = new Map();
  const of = (remark) => `${remark.engine}/${remark.rank}`;
  for (const remark of known.remarks) told.set(of(remark), (told.get(of(remark)) ?? 0) + 1);
  known.remarks.splice(Math.max(0, known.remarks.findIndex((remark) => told.get(of(remark)) > REMARKS_OF_ONE)), 1);
}
