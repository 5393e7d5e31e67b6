// Pages and the rhythm: news marks what is stale, and the next frame draws what is seen.

import * as engine from "./engine.js";
import * as fleet from "./fleet.js";
import * as health from "./health.js";
import * as ledger from "./ledger.js";
import * as query from "./query.js";
import * as routing from "./routing.js";
import * as timeline from "./timeline.js";
import { arrows, shortcuts } from "./keys.js";
import * as kept from "./kept.js";
import { follow } from "./live.js";
import * as totals from "./totals.js";
import * as value from "./value.js";
import { say } from "./words.js";

const by = (id) => document.getElementById(id);
let page = { name: "fleet" };
let due = false;

function route() {
  const [, name, id] = location.hash.split("/");
  if (name === "engine" && id) page = { name, engine: named(id) };
  else if (name === "routing") page = { name, receipt: named(id ?? "") };
  else page = { name: name === "ask" ? "ask" : "fleet" };
  fleet.only(name === "show" ? id : "");
  for (const section of document.querySelectorAll("section[data-page]")) section.hidden = section.dataset.page !== page.name;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.page === page.name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  window.scrollTo(0, 0);
  redraw();
}

/** The engine that an address names. One that somebody wrote by hand may be no encoding of anything: it is taken as it is. */
function named(id) {
  try {
    return decodeURIComponent(id);
  } catch {
    return id;
  }
}

function redraw() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    totals.draw(by("totals"));
    const title = health.title(page.engine);
    if (document.title !== title) document.title = title;
    if (page.name === "fleet") {
      health.draw();
      value.draw();
      fleet.draw();
    }
    if (page.name === "engine") engine.draw(page.engine);
    if (page.name === "ask") query.draw();
    if (page.name === "routing") {
      routing.draw();
      ledger.draw(page.receipt);
    }
    timeline.draw(page.engine);
  });
}

function theme(change) {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  let chosen = kept.theme() ?? system;
  if (change) {
    chosen = chosen === "dark" ? "light" : "dark";
    kept.setTheme(chosen);
  }
  document.documentElement.dataset.theme = chosen;
  by("theme").setAttribute("aria-label", `Switch to ${chosen === "dark" ? "light" : "dark"} colours`);
  redraw();
}

const LINK = { live: "live", lost: "not connected", locked: "signed out", resting: "paused while hidden" };

/** Says how the connection is: in the corner always, and across the page when what is shown is old. */
function connection(state, why) {
  by("link").dataset.state = state;
  say(by("link"), LINK[state]);
  document.documentElement.dataset.link = state;
  by("banner").hidden = state !== "lost";
  if (state === "lost") say(by("banner-words"), `Can't reach kvplane: ${why}. Showing the last known data; retrying…`);
  by("token-form").hidden = state !== "locked";
  if (state !== "locked") return;
  const asked = kept.hasToken() ? "kvplane rejected this token" : "kvplane requires a token";
  say(by("token-why"), `${asked}: ${why}.`);
  by("token").focus();
}

fleet.begin(redraw);
engine.begin(redraw);
query.begin();
ledger.begin();
timeline.begin(redraw);
theme(false);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme(false));
by("theme").addEventListener("click", () => theme(true));
by("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address says which page it is
  by("main").focus();
});
window.addEventListener("hashchange", route);
window.addEventListener("resize", redraw);
by("sort").addEventListener("change", redraw);
arrows(by("fleet"));
shortcuts({
  f: () => (location.hash = "#/"),
  a: () => (location.hash = "#/ask"),
  r: () => (location.hash = "#/routing"),
  d: () => theme(true),
  "/": () => {
    location.hash = "#/";
    route();
    by("filter").focus();
  },
});

const again = follow((news, why) => {
  if (news in LINK) connection(news, why);
  redraw();
});
by("again").addEventListener("click", again);
by("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const taken = kept.setToken(by("token").value.trim());
  by("token").value = "";
  if (taken) again();
  else say(by("token-why"), "Invalid token: it contains characters that a request cannot carry, such as a curly quote or an invisible space. Copy it again.");
});
// Plots go on, and "2 min ago" grows, also while nothing happens.
setInterval(() => ["engine", "routing"].includes(page.name) && redraw(), 1000);
route();
