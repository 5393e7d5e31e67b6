// Events put together: one cause that hits several ranks within a minute is one incident, and what healed is told apart.

import { key, known } from "./known.js";
import { severity } from "./words.js";

const TOGETHER = 60_000; // between two events of one incident
const HEALS = new Set(["continuity", "trust", "source", "gap"]);

const whose = (remark) => `${remark.engine}/${remark.rank}`;
const causes = new WeakMap(); // remark -> its cause: every draw asks for those of all remarks
/** What it is about, without numbers. */
function cause(remark) {
  if (causes.has(remark)) return causes.get(remark);
  const words = remark.topic === "members" && remark.engine === undefined ? remark.words.split(":")[0] : remark.words.replace(/\d+/g, "#");
  causes.set(remark, `${remark.topic}|${remark.mood}|${words}`);
  return causes.get(remark);
}

/** Remarks, newest first, as incidents: {number, remarks, newest, healed}. A number names an incident for as long as it is shown. */
export function incidents(remarks) {
  const open = new Map(); // cause -> incident that goes on
  const all = [];
  const good = new Map(); // whose -> times of good news, oldest first
  for (const remark of remarks) {
    if (remark.mood === "good" && HEALS.has(remark.topic)) good.set(whose(remark), [...(good.get(whose(remark)) ?? []), remark.unix_ms]);
  }
  for (const remark of remarks) {
    // Engines that came or went the same way are one incident too, and so are ranks.
    const isPart = remark.engine !== undefined || remark.topic === "members";
    const last = isPart ? open.get(cause(remark)) : undefined;
    if (last && remark.unix_ms - last.newest.unix_ms <= TOGETHER) {
      last.remarks.push(remark);
      last.newest = remark;
    } else {
      const incident = { number: remark.number, remarks: [remark], newest: remark };
      all.push(incident);
      if (isPart) open.set(cause(remark), incident);
    }
  }
  for (const incident of all) incident.healed = incident.newest.mood === "bad" && HEALS.has(incident.newest.topic) ? healedAfter(incident, good) : null;
  return all.sort((one, two) => two.newest.number - one.newest.number);
}

/** Milliseconds until every rank of an incident was well again; null while one is not. */
function healedAfter({ remarks, newest }, good) {
  let end = newest.unix_ms;
  for (const remark of remarks) {
    const rank = known.ranks.get(key(remark));
    if (!rank || severity(rank) > 0) return null;
    const well = (good.get(whose(remark)) ?? []).find((at) => at >= remark.unix_ms);
    if (well === undefined) return null;
    end = Math.max(end, well);
  }
  return end - remarks[0].unix_ms;
}
