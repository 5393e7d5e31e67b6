// The one stream from the plane: what it says, and what was said before.

const HISTORY = 600; // samples a rank keeps: five minutes
const TOKEN = "kvplane-token";

/** Everything that is known. */
export const known = {
  ranks: new Map(), // "engine/rank" -> the rank as the plane tells it
  history: new Map(), // "engine/rank" -> [{at, rate, blocks}]
  remarks: [], // oldest first
  skew: 0, // the plane's clock, less ours
  members: 0, // rises when other ranks are there
};

export const key = (rank) => `${rank.engine}/${rank.rank}`;
export const now = () => Date.now() + known.skew;

export function setToken(token) {
  sessionStorage.setItem(TOKEN, token);
}

/** What every request to the plane carries. */
export function headers() {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { authorization: `Bearer ${token}` } : {};
}

/**
 * Follows the plane until the page is closed. `tell` gets "fleet" and "remarks" when there is news, and "live", "lost" or "locked"
 * when the connection changes. Returns a function that connects again at once.
 */
export function follow(tell) {
  let wake = () => {};
  (async () => {
    for (let pause = 500; ; pause = Math.min(pause * 2, 10_000)) {
      const ended = await read(tell, () => (pause = 500)).catch((error) => String(error));
      tell(ended === "locked" ? "locked" : "lost");
      await new Promise((resolve) => {
        wake = resolve;
        if (ended !== "locked") setTimeout(resolve, pause);
      });
    }
  })();
  return () => wake();
}

async function read(tell, reached) {
  const response = await fetch("v1/watch", { headers: headers(), cache: "no-store" });
  if (response.status === 401 || response.status === 403) return "locked";
  if (!response.ok) return `HTTP ${response.status}`;
  reached();
  tell("live");
  const lines = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await lines.read();
    if (done) return "ended";
    rest += value;
    const events = rest.split("\n\n");
    rest = events.pop();
    for (const event of events) take(event, tell);
  }
}

function take(event, tell) {
  let name = "";
  let data = "";
  for (const line of event.split("\n")) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    if (line.startsWith("data:")) data += line.slice(5);
  }
  if (!data) return;
  const said = JSON.parse(data);
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
        other.engine === remark.engine && other.rank === remark.rank && other.words === remark.words && other.times === remark.times - 1;
      const at = known.remarks.findLastIndex(same);
      if (at >= 0) known.remarks.splice(at, 1);
    }
    if (!known.remarks.some((other) => other.number === remark.number)) known.remarks.push(remark);
  }
  known.remarks.splice(0, Math.max(0, known.remarks.length - 1024));
}
