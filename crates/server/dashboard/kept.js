// What the browser keeps for us. Where it may not, it is kept until the page is closed.

const TOKEN = "kvplane-token";
const THEME = "kvplane-theme";
const here = new Map();

function recall(area, name) {
  try {
    return window[area].getItem(name) ?? here.get(name) ?? null;
  } catch {
    return here.get(name) ?? null;
  }
}

function keep(area, name, value) {
  try {
    window[area].setItem(name, value);
  } catch {
    here.set(name, value);
  }
}

export const theme = () => recall("localStorage", THEME);
export const setTheme = (chosen) => keep("localStorage", THEME, chosen);
export const hasToken = () => recall("sessionStorage", TOKEN) !== null;

/** The token is kept for this tab alone, and is never part of an address. False if no request can carry it. */
export function setToken(token) {
  const fits = /^[\x21-\x7e]+$/.test(token);
  if (fits) keep("sessionStorage", TOKEN, token);
  return fits;
}

/** What every request to the plane carries. */
export function headers() {
  const token = recall("sessionStorage", TOKEN);
  return token ? { authorization: `Bearer ${token}` } : {};
}
