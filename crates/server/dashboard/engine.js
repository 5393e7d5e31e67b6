// One engine: its ranks, with plots that move.

import { known, key, now } from "./live.js";
import { plot } from "./plot.js";
import { MARKS, TIERS, bytes, make, mark, say, sentence, short, since, standing } from "./words.js";

const SPAN = 120_000; // across a plot
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
  const facts = ranks.length ? `${ranks[0].kind}, model ${ranks[0].model}, ${ranks.length} ranks` : "This plane has no such engine.";
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
    values: {},
  };
  for (const name of ["epoch", "sequence", "last event", "blocks", "restarts", "gaps", "replay window", "state"]) {
    part.values[name] = make("dd");
    part.facts.append(make("dt", {}, name), part.values[name]);
  }
  const figure = (title, note, canvas) => make("figure", {}, make("figcaption", {}, make("span", {}, title), note), canvas);
  part.card = make(
    "article",
    { class: "rank", "data-rank": rank.rank },
    make("h2", {}, part.mark, `rank ${rank.rank}`, part.state),
    part.why,
    part.facts,
    figure("events a second", part.rateNote, part.rate),
    figure("blocks by tier", part.blocksNote, part.blocks),
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
  const tiers = TIERS.filter((tier) => rank.blocks[tier] !== undefined).map((tier) => `${tier} ${rank.blocks[tier].toLocaleString()}`);
  const values = {
    epoch: String(rank.epoch),
    sequence: rank.sequence === null ? "none yet" : String(rank.sequence),
    "last event": rank.last_event_ms === null ? "none yet" : `${since(rank.last_event_ms, now())} ago`,
    blocks: `${tiers.join(", ")}${rank.block_size ? ` (of ${rank.block_size} tokens)` : ""}`,
    restarts: String(rank.restarts),
    gaps: rank.gaps_unfilled ? `${rank.gaps}, ${rank.gaps_unfilled} not repaired` : `${rank.gaps}, all repaired`,
    "replay window": `${rank.window_batches.toLocaleString()} batches`,
    state: bytes(rank.state_bytes),
  };
  for (const [name, value] of Object.entries(values)) say(part.values[name], value);
  const at = now();
  const all = known.history.get(key(rank)) ?? [];
  // From one before the left edge on, and up to now: what was told last is so still.
  const first = Math.max(0, all.findIndex((sample) => sample.at > at - SPAN) - 1);
  const samples = [...all.slice(first), ...all.slice(-1).map((last) => ({ ...last, at }))];
  const times = samples.map((sample) => sample.at);
  const colour = (name) => colours.getPropertyValue(`--${name}`).trim();
  const most = plot(part.rate, times, [{ colour: colour("accent"), values: samples.map(({ rate }) => rate) }], at, SPAN);
  say(part.rateNote, `${short(rank.events_per_s)} now, at most ${short(most)}`);
  mark(part.rate, "aria-label", `${rank.events_per_s} events a second`);
  const series = TIERS.map((tier) => ({ colour: colour(tier), values: samples.map(({ blocks }) => blocks[tier] ?? 0) }));
  plot(part.blocks, times, series, at, SPAN);
  say(part.blocksNote, tiers.join(", "));
  mark(part.blocks, "aria-label", `blocks: ${tiers.join(", ")}`);
}
