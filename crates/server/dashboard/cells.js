// A cell: one rank at a glance. Cells in sight are drawn whole; of the others only what the page is searched for stays current.

import { key } from "./known.js";
import { MARKS, TIERS, lag, make, mark, rate, say, sentence, short, standing, tierNames } from "./words.js";

/** Where a cell leads. */
export const page = (engine) => `#/engine/${encodeURIComponent(engine)}`;

export function buildCell(rank) {
  const parts = { mark: make("span", { class: "mark" }), state: make("span", { class: "state" }), pace: make("span", { class: "pace" }), life: make("span", { class: "life" }), tiers: {} };
  const blocks = make("span", { class: "blocks" });
  for (const tier of TIERS) {
    parts.tiers[tier] = make("span", { class: "tier", "data-tier": tier, hidden: "" });
    blocks.append(parts.tiers[tier]);
  }
  const names = { class: "cell", href: page(rank.engine), tabindex: "-1", "data-engine": rank.engine, "data-rank": rank.rank };
  parts.cell = make("a", names, make("span", { class: "top" }, parts.mark, make("b", {}, `rank ${rank.rank}`), parts.state), blocks, parts.pace, parts.life);
  return parts;
}

/** Draws a rank as it is now. Nothing is done for one that was drawn like this already: the same object means no news. */
export function drawCell(parts, rank, inSight) {
  if (parts.drawn === rank) return;
  const state = standing(rank);
  if (parts.marked !== rank) {
    parts.marked = rank;
    mark(parts.cell, "data-standing", state);
    mark(parts.cell, "data-epoch", String(rank.epoch));
    mark(parts.cell, "data-trouble", rank.trouble ?? "");
  }
  // A cell out of sight that has been drawn once is drawn again when it comes into sight.
  if (!inSight && parts.drawn) return;
  parts.drawn = rank;
  say(parts.mark, MARKS[state]);
  if (rank.trouble) say(parts.state, `${rank.trust}, ${rank.trouble.replaceAll("_", " ")}`);
  else say(parts.state, state === "away" ? `${rank.trust}, away` : state);
  for (const tier of TIERS) {
    const held = rank.blocks[tier];
    if (parts.tiers[tier].hidden !== (held === undefined)) parts.tiers[tier].hidden = held === undefined;
    if (held !== undefined) say(parts.tiers[tier], short(held));
  }
  say(parts.pace, `${rank.continuity} · ${rate(rank)}/s · lag ${lag(rank)}`);
  say(parts.life, `epoch ${rank.epoch} · life ${rank.life}`);
  const tiers = tierNames(rank.blocks);
  mark(
    parts.cell,
    "title",
    `${key(rank)}: ${rank.continuity}, ${rank.trust}\n${sentence(rank)}\nblocks: ${tiers}\n` +
      `${rate(rank)} events/s, lag ${lag(rank)}\nepoch ${rank.epoch}, number ${rank.life} since kvplane started`,
  );
  mark(
    parts.cell,
    "aria-label",
    `${rank.engine} rank ${rank.rank}, ${rank.continuity}, ${rank.trust}: ${sentence(rank)}; blocks ${tiers}, ` +
      `${rate(rank)} events a second, lag ${lag(rank)}, epoch ${rank.epoch}, life ${rank.life}`,
  );
}
