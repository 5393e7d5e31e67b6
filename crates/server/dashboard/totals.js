// The whole fleet in one line.

import { known } from "./known.js";
import { counted, short, standing } from "./words.js";

export function totals() {
  if (known.members === 0) return "";
  const states = { exact: 0, away: 0, other: 0 };
  let blocks = 0;
  let events = 0;
  const engines = new Set();
  for (const rank of known.ranks.values()) {
    engines.add(rank.engine);
    const state = standing(rank);
    states[state in states ? state : "other"] += 1;
    blocks += rank.blocks.device;
    events += rank.events_per_s ?? 0;
  }
  const parts = [counted(engines.size, "engine"), counted(known.ranks.size, "rank"), `${states.exact} exact`];
  if (states.other) parts.push(`${states.other} less than exact`);
  if (states.away) parts.push(`${states.away} not followed`);
  const lost = known.links.filter((link) => !link.connected).length;
  if (lost) parts.push(`${counted(lost, "plane")} not followed`);
  parts.push(`${short(blocks)} blocks on devices`, `${short(events)} events/s`);
  return parts.join(" · ");
}
