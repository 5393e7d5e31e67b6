// How ranks were before, for plots: a sample whenever one changed, and a hole where the plane was not heard.

import { headers } from "./kept.js";
import { key, known } from "./known.js";

const KEPT = 490; // samples of a rank: the server's last hour, and two a second since the page was opened
const ALL = 200_000; // samples of all ranks: of a large fleet less is kept of each, but not of the engine that is looked at
const LEAST = 20;

const history = new Map(); // "engine/rank" -> [{at, rate, blocks}]; in a hole both are null
let looked;

export const samples = (rank) => history.get(key(rank)) ?? [];

/** The engine that is looked at. */
export function look(engine) {
  looked = engine;
}

/** The last hour of the engine, as the server kept it. Without it plots begin now. */
export function recall(engine) {
  fetch(`v1/history?engine=${encodeURIComponent(engine)}`, { headers: headers(), cache: "no-store" })
    .then((response) => (response.ok ? response.json() : { ranks: [] }))
    .then((past) => seed(engine, past.ranks))
    .catch(() => {});
}

/** Puts the server's samples of an engine before what this page saw itself. */
function seed(engine, ranks) {
  for (const { rank, samples: past } of ranks) {
    const seen = samples({ engine, rank });
    const begun = seen[0]?.at ?? Infinity;
    const older = past.filter((sample) => sample.unix_ms < begun).map((sample) => ({ at: sample.unix_ms, rate: sample.events_per_s, blocks: sample.blocks }));
    history.set(key({ engine, rank }), [...older, ...seen]);
  }
}

/** Notes the ranks that the plane told at a time. */
export function note(ranks, at) {
  const each = Math.min(KEPT, Math.max(LEAST, Math.floor(ALL / known.ranks.size)));
  for (const rank of ranks) {
    const before = samples(rank);
    const last = before.at(-1);
    // While nothing changed nothing was told: it stayed as it was until just now.
    if (last?.blocks && at - last.at > 1000) before.push({ ...last, at: at - 500 });
    before.push({ at, rate: rank.events_per_s, blocks: rank.blocks });
    const most = rank.engine === looked ? KEPT : each;
    if (before.length > most) before.splice(0, before.length - most);
    history.set(key(rank), before);
  }
}

/** The plane is not heard: what is, from when it was last heard on, nobody knows. */
export function hole() {
  for (const before of history.values()) {
    const last = before.at(-1);
    if (!last.blocks) continue;
    const at = Math.max(last.at, known.heard);
    before.push({ ...last, at }, { at, rate: null, blocks: null });
  }
}

/** Only ranks that are there still have a past; those of another run of the plane have none. */
export function forget(stays) {
  for (const name of [...history.keys()].filter((name) => !stays(name))) history.delete(name);
}
