// Is the fleet healthy? The banner, the open problems with their remedies, and the tab's title.

import { known } from "./known.js";
import { counted, make, mark, say, severity } from "./words.js";

const LISTED = 6; // problems on the page; the others are counted
let drawn = "";

/** How many ranks need attention, by how much. */
export function census() {
  const found = { ranks: known.ranks.size, broken: 0, degraded: 0, lost: known.links.filter((link) => !link.connected).length };
  for (const rank of known.ranks.values()) {
    const level = severity(rank);
    if (level === 2) found.broken += 1;
    if (level === 1) found.degraded += 1;
  }
  return found;
}

/** The title of the tab: with the alarm, if there is one. */
export function title(page) {
  const { broken, degraded, lost } = census();
  const alarm = broken + lost ? `✗ ${broken + lost} · ` : degraded ? `▾ ${degraded} · ` : "";
  return `${alarm}${page ? `${page} · ` : ""}kvplane`;
}

function verdict({ ranks, broken, degraded, lost }) {
  const errors = known.problems.filter((problem) => problem.severity === "error").length;
  if (known.members === 0) return ["none", ""];
  if (ranks + known.links.length === 0) return ["none", "No engines yet."];
  if (broken + lost) return ["bad", `${counted(broken + lost, "rank")} of ${ranks} ${broken + lost === 1 ? "needs" : "need"} attention`];
  if (errors) return ["bad", counted(errors, "open error")];
  if (degraded) return ["warn", `${counted(degraded, "rank")} of ${ranks} degraded: their answers are less than exact`];
  return ["good", `Healthy: all ${counted(ranks, "rank")} live and exact`];
}

export function draw() {
  const found = census();
  const [level, words] = verdict(found);
  mark(document.getElementById("health"), "data-level", level);
  say(document.getElementById("health-words"), words);
  const links = [];
  const sick = found.broken + found.degraded;
  if (sick) links.push(["#/show/sick", `show ${sick === 1 ? "it" : `all ${sick}`}`]);
  if (sick && found.ranks > sick) links.push(["#/show/exact", `${found.ranks - sick} healthy`]);
  const wanted = JSON.stringify([links, known.problems]);
  if (wanted === drawn) return;
  drawn = wanted;
  document.getElementById("health-links").replaceChildren(...links.map(([href, text]) => make("a", { href }, text)));
  const open = known.problems.filter((problem) => problem.severity !== "info");
  const items = open.slice(0, LISTED).map(item);
  if (open.length > LISTED) items.push(make("li", { class: "more" }, `… and ${open.length - LISTED} more: run kvplane doctor`));
  document.getElementById("open-problems").replaceChildren(...items);
}

function item({ code, severity: level, seen, why, todo, count, subjects }) {
  const names = subjects.slice(0, 4).map((subject) => {
    const engine = subject.replace(/\/\d+$/, "");
    return [...known.ranks.values()].some((rank) => rank.engine === engine)
      ? make("a", { href: `#/engine/${encodeURIComponent(engine)}` }, subject)
      : make("b", {}, subject);
  });
  const line = make("p", {}, make("span", { class: "code", title: why }, code.replaceAll("_", " ")), " ");
  names.forEach((name, at) => line.append(at ? ", " : "", name));
  if (count > names.length) line.append(" and ", make("a", { href: "#/show/sick" }, `${count - names.length} more`));
  line.append(`: ${seen}`);
  return make("li", { "data-severity": level, "data-code": code }, line, make("p", { class: "todo" }, `→ ${todo}`));
}
