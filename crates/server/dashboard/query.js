// Who holds how much of a prompt, drawn along it.

import { headers, known } from "./live.js";
import { make, say } from "./words.js";

const COLDEST_FIRST = ["remote", "disk", "host", "device"];
let models = "";

export function begin() {
  const form = document.getElementById("ask");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    ask().catch((error) => fail(String(error)));
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
}

export function draw() {
  const names = [...new Set([...known.ranks.values()].map((rank) => rank.model))].sort();
  if (models === names.join("\n")) return;
  models = names.join("\n");
  const select = document.getElementById("ask-model");
  const chosen = select.value;
  select.replaceChildren(...names.map((name) => make("option", { value: name }, name)));
  if (names.includes(chosen)) select.value = chosen;
}

function fail(message) {
  const error = document.getElementById("ask-error");
  error.hidden = !message;
  say(error, message);
}

async function ask() {
  fail("");
  const text = document.getElementById("ask-tokens").value;
  const token_ids = (text.match(/-?[0-9.]+/g) ?? []).map(Number);
  const wrong = token_ids.find((id) => !Number.isInteger(id) || id < 0 || id > 0xffffffff);
  if (wrong !== undefined) return fail(`${wrong} is not a token id: whole numbers from 0 to 4294967295`);
  if (!token_ids.length) return fail("there is no number in it");
  const body = JSON.stringify({ model: document.getElementById("ask-model").value, token_ids });
  const response = await fetch("v1/query", { method: "POST", headers: { ...headers(), "content-type": "application/json" }, body });
  const answer = await response.json();
  if (!response.ok) return fail(answer.error?.message ?? `HTTP ${response.status}`);
  show(answer, token_ids.length);
}

function show(answer, tokens) {
  const best = new Set(answer.best.map(({ engine, rank }) => `${engine}/${rank}`));
  const nodes = [make("p", {}, `${tokens.toLocaleString()} tokens. The answer is worth: `, make("b", {}, answer.trust), ".")];
  for (const match of answer.matches) nodes.push(holder(match, tokens, best.has(`${match.engine}/${match.rank}`)));
  nodes.push(make("p", { class: "ruler" }, make("span", {}, "first token"), make("span", {}, `token ${tokens.toLocaleString()}`)));
  if (!answer.matches.length) nodes.push(make("p", { class: "empty" }, "No stream of this model can be asked right now."));
  for (const other of answer.not_credited) {
    nodes.push(make("p", { class: "empty" }, `${other.engine}/${other.rank} is not credited: ${other.reason}`));
  }
  document.getElementById("ask-answer").replaceChildren(...nodes);
}

function holder(match, tokens, isBest) {
  const share = (held) => Math.min(100, (100 * held) / tokens);
  const bar = make("div", { class: "bar", role: "img", "aria-label": `${match.tokens} of ${tokens} tokens` });
  for (const tier of COLDEST_FIRST) {
    const held = match.tiers[tier] ?? 0;
    if (!held) continue;
    const part = make("i", { "data-tier": tier, title: `${tier} and warmer: ${held} tokens` });
    part.style.width = `${share(held)}%`;
    bar.append(part);
  }
  const name = make("span", { class: isBest ? "best" : "" }, `${match.engine}/${match.rank}`);
  const size = `${match.tokens.toLocaleString()} tokens (${share(match.tokens).toFixed(0)} %)`;
  const worth = match.trust === "exact" ? "exact" : `${match.trust}: ${match.reason}`;
  return make("div", { class: "holder" }, make("p", {}, name, make("span", {}, size), make("span", { class: "hint" }, worth)), bar);
}
