// One engine: its ranks, with plots that move.

import { known, key, now } from "./live.js";
import { plot } from "./plot.js";
import { MARKS, TIERS, bytes, lag, make, mark, say, sentence, short, since, standing, tierNames } from "./words.js";

const SPAN = 120_000; // across a plot, once it has been looked at for so long
const LEAST_SPAN = 20_000;
let built = ""; // which engine and ranks the page shows
const parts = new Map(); // rank -> what changes on its card

export function draw(engine) {
  const ranks = [...known.ranks.values()].filter((rank) => rank.engine === engine);
  const wanted = `${engine} ${known.members}`;
  if (built !== wanted) {
    built = wanted;
    build(engine, ranks);
  }
  const colours = getComputedStyle(document.documentElement);
  for (const rank of ranks) drawRank(rank, colours);
}

function build(engine, ranks) {
  parts.clear();
  say(document.getElementById("engine-name"), engine);
  const facts = ranks.length ? `${ranks[0].kind}, model ${ranks[0].model}, ${ranks.length} rank${ranks.length === 1 ? "" : "s"}` : "This plane has no such engine.";
  say(document.getElementById("engine-facts"), facts);
  document.getElementById("engine-ranks").replaceChildren(...ranks.map(buildRank));
}

function buildRank(rank) {
  const part = {
    mark: make("span", { class: "mark" }),
    state: make("span", {}),
    why: make("p", { class: "why" }),
    facts: make("dl", {}),
    rate: make("canvas", { role: "img" }),
    rateNote: make("span"),
    blocks: make("canvas", { role: "img" }),
    blocksNote: make("span"),
    from: [make("span"), make("span")],
    values: {},
  };
  for (const name of ["epoch", "sequence", "last event", "lag", "blocks", "restarts", "gaps", "replay window", "state"]) {
    part.values[name] = make("dd");
    part.facts.append(make("dt", {}, name), part.values[name]);
  }
  const figure = (title, note, canvas, from) => {
    const axis = make("p", { class: "axis", "aria-hidden": "true" }, from, make("span", {}, "now"));
    return make("figure", {}, make("figcaption", {}, make("span", {}, title), note), canvas, axis);
  };
  part.card = make(
    "article",
    { class: "rank", "data-rank": rank.rank },
    make("h2", {}, part.mark, `rank ${rank.rank}`, part.state),
    part.why,
    part.facts,
    figure("events a second", part.rateNote, part.rate, part.from[0]),
    figure("blocks by tier", part.blocksNote, part.blocks, part.from[1]),
  );
  parts.set(rank.rank, part);
  return part.card;
}

function drawRank(rank, colours) {
  const part = parts.get(rank.rank);
  if (!part) return;
  const state = standing(rank);
  mark(part.card, "data-standing", state);
  say(part.mark, MARKS[state]);
  say(part.state, `${rank.continuity}, ${rank.trust}`);
  say(part.why, sentence(rank));
  const values = {
    epoch: `${rank.epoch} (life ${rank.restarts + 1} since it is followed)`,
    sequence: rank.sequence === null ? "none yet" : String(rank.sequence),
    "last event": rank.last_event_ms === null ? "none yet" : `${since(rank.last_event_ms, now())} ago`,
    lag: lag(rank),
    blocks: `${tierNames(rank.blocks)}${rank.block_size ? ` (of ${rank.block_size} tokens)` : ""}`,
    restarts: String(rank.restarts),
    gaps: gaps(rank),
    "replay window": `${rank.window_batches.toLocaleString()} batches`,
    state: bytes(rank.state_bytes),
  };
  for (const [name, value] of Object.entries(values)) say(part.values[name], value);
  drawPlots(rank, part, colours);
}

/** Gaps are repaired when none is open: a stream that is not followed may have one. */
function gaps(rank) {
  if (!rank.gaps) return "0";
  const parts = [String(rank.gaps)];
  if (rank.gaps_unfilled) parts.push(`${rank.gaps_unfilled} not repaired`);
  else if (rank.continuity === "live") parts.push("all repaired");
  if (rank.continuity === "recovering") parts.push("being repaired");
  return parts.join(", ");
}

function drawPlots(rank, part, colours) {
  const at = now();
  const all = known.history.get(key(rank)) ?? [];
  const span = Math.min(SPAN, Math.max(LEAST_SPAN, at - (all[0]?.at ?? at)));
  for (const from of part.from) say(from, `${since(at - span, at)} ago`);
  // From one before the left edge on, and up to now: what was told last is so still.
  const first = Math.max(0, all.findIndex((sample) => sample.at > at - span) - 1);
  const samples = [...all.slice(first), ...all.slice(-1).map((last) => ({ ...last, at }))];
  const times = samples.map((sample) => sample.at);
  const colour = (name) => colours.getPropertyValue(`--${name}`).trim();
  const most = plot(part.rate, times, [{ colour: colour("accent"), values: samples.map(({ rate }) => rate) }], at, span);
  say(part.rateNote, `${short(rank.events_per_s)} now, at most ${short(most)}`);
  mark(part.rate, "aria-label", `${rank.events_per_s} events a second`);
  const series = TIERS.map((tier) => ({ colour: colour(tier), values: samples.map(({ blocks }) => blocks[tier] ?? 0) }));
  plot(part.blocks, times, series, at, span);
  say(part.blocksNote, tierNames(rank.blocks));
  mark(part.blocks, "aria-label", `blocks: ${tierNames(rank.blocks)}`);
}
