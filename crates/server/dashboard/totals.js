// The whole fleet in one line. Ranks that are not followed count as ranks, and what they held counts for nothing.

import { known } from "./known.js";
import { counted, make, short, standing } from "./words.js";

let drawn = "";

export function draw(element) {
  if (known.members === 0) return;
  const states = { exact: 0, away: 0, other: 0 };
  let blocks = 0;
  let events = 0;
  const engines = new Set();
  for (const rank of known.ranks.values()) {
    engines.add(rank.engine);
    const state = standing(rank);
    states[state in states ? state : "other"] += 1;
    if (state !== "away") blocks += rank.blocks.device;
    events += rank.events_per_s ?? 0;
  }
  const lost = known.links.filter((link) => !link.connected).length;
  const parts = [[`${counted(engines.size, "engine")} · ${counted(known.ranks.size, "rank")}`, "#/"], [`${states.exact} exact`, "#/show/exact"]];
  if (states.other) parts.push([`${states.other} less than exact`, "#/show/less"]);
  if (states.away) parts.push([`${states.away} away`, "#/show/away"]);
  if (lost) parts.push([`${counted(lost, "plane")} not connected`, "#/show/sick"]);
  parts.push([`${short(blocks)} blocks on devices · ${short(events)} events/s`]);
  const wanted = JSON.stringify(parts);
  if (wanted === drawn) return;
  drawn = wanted;
  const nodes = parts.flatMap(([text, href], at) => [at ? " · " : "", href ? make("a", { href }, text) : text]);
  element.replaceChildren(...nodes);
}
