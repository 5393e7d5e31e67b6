// Pages, keys and the rhythm: news marks what is stale, and the next frame draws what is seen.

import * as engine from "./engine.js";
import * as fleet from "./fleet.js";
import * as query from "./query.js";
import * as timeline from "./timeline.js";
import { follow, setToken } from "./live.js";
import { say } from "./words.js";

const LINK = { live: "live", lost: "connection lost, trying again", locked: "a token is needed" };
let page = { name: "fleet" };
let due = false;

function route() {
  const [, name, id] = location.hash.split("/");
  if (name === "engine" && id) page = { name, engine: decodeURIComponent(id) };
  else page = { name: name === "ask" ? "ask" : "fleet" };
  for (const section of document.querySelectorAll("section[data-page]")) section.hidden = section.dataset.page !== page.name;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.page === page.name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = page.engine ? `${page.engine} · kvplane` : "kvplane";
  redraw();
}

function redraw() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    say(document.getElementById("totals"), fleet.totals());
    if (page.name === "fleet") fleet.draw();
    if (page.name === "engine") engine.draw(page.engine);
    if (page.name === "ask") query.draw();
    timeline.draw(page.engine);
  });
}

function theme(change) {
  const saved = localStorage.getItem("kvplane-theme");
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  let chosen = saved ?? system;
  if (change) {
    chosen = chosen === "dark" ? "light" : "dark";
    localStorage.setItem("kvplane-theme", chosen);
  }
  document.documentElement.dataset.theme = chosen;
  redraw();
}

function keys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
  const go = { f: "#/", a: "#/ask" }[event.key];
  if (go) location.hash = go;
  else if (event.key === "d") theme(true);
  else if (event.key === "/") {
    location.hash = "#/";
    document.getElementById("filter").focus();
    event.preventDefault();
  }
}

theme(false);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme(false));
document.getElementById("theme").addEventListener("click", () => theme(true));
document.addEventListener("keydown", keys);
window.addEventListener("hashchange", route);
window.addEventListener("resize", redraw);
fleet.begin();
query.begin();

const form = document.getElementById("token-form");
const link = document.getElementById("link");
const again = follow((news) => {
  if (news in LINK) {
    link.dataset.state = news;
    say(link, LINK[news]);
    form.hidden = news !== "locked";
    if (news === "locked") document.getElementById("token").focus();
  }
  redraw();
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  setToken(document.getElementById("token").value.trim());
  again();
});
// "2 min ago" grows also while nothing happens.
setInterval(redraw, 5000);
route();
