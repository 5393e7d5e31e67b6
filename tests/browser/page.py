"""The dashboard in a real browser, by what a person sees of it."""

import json
import shutil

from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from harness.wait import eventually

# What a page that cannot reach its plane cannot help but say.
UNREACHABLE = "net::ERR_"
# A name that means this machine, as somebody else may have made one.
FOREIGN = "plane.example"


def start_chromium():
    """Debian's chromium without a screen. Nothing is fetched: driver and browser are those of the system."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    words = [
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,900", "--force-device-scale-factor=1",
        "--disable-background-networking", "--disable-component-update", "--no-first-run", "--lang=en-GB", "--no-proxy-server",
        f"--host-resolver-rules=MAP {FOREIGN} 127.0.0.1",
    ]
    for word in words:
        options.add_argument(word)
    # Nor is the driver beside us reached through anybody's proxy.
    options.ignore_local_proxy_environment_variables()
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))


class Page:
    """One plane's dashboard in a browser."""

    def __init__(self, driver, origin):
        self.driver = driver
        self.origin = origin
        self._requested = []
        # Storage, media and sizes of the page before are gone with it.
        driver.get("about:blank")
        driver.execute_cdp_cmd("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "all"})
        self.media()
        self.size(1280, 900)
        driver.get_log("performance")
        driver.get_log("browser")

    def open(self, fragment="#/"):
        """Loads the page anew, also where only the fragment differs."""
        self.driver.get("about:blank")
        self.driver.get(f"{self.origin}/{fragment}")
        return self

    def go(self, fragment):
        self.run("location.hash = arguments[0]", fragment)

    def run(self, script, *arguments):
        """What a script returns in the page."""
        return self.driver.execute_script(script, *arguments)

    def until(self, script, *arguments, what=None, deadline=60.0):
        """Waits until a script returns something true, and returns that. Only what never comes is waited for to the end."""
        return eventually(
            lambda: self.run(script, *arguments),
            lambda: f"{what or script}\n{self.text()}\n{self.driver.get_log('browser')}", deadline,
        )

    def text(self):
        return self.run("return document.body.innerText")

    def shows(self, words, where="body"):
        """Waits until a part of the page has these words."""
        return self.until("return document.querySelector(arguments[0])?.innerText.includes(arguments[1])", where, words, what=f"{words!r} in {where}")

    def live(self):
        self.until("return document.getElementById('link').dataset.state === 'live'", what="live")
        return self

    def cell(self, engine, rank=0, **wanted):
        """Waits until a cell's attributes are as wanted, and returns them all."""
        script = """
            const cell = document.querySelector(`.cell[data-engine="${arguments[0]}"][data-rank="${arguments[1]}"]`);
            const wanted = Object.entries(arguments[2]);
            return cell && wanted.every(([name, value]) => cell.dataset[name] === value) ? {...cell.dataset, text: cell.innerText} : null;
        """
        return self.until(script, engine, rank, wanted, what=f"cell {engine}/{rank} {wanted}")

    def hide(self, hidden=True):
        """What a page is told when another tab is in front of it, and when it is in front again."""
        self.run("""
            Object.defineProperty(document, "hidden", {value: arguments[0], configurable: true});
            document.dispatchEvent(new Event("visibilitychange"));
        """, hidden)

    def press(self, *keys):
        ActionChains(self.driver).send_keys(*keys).perform()

    def tab(self):
        self.press(Keys.TAB)

    def find(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def media(self, **features):
        """What the system prefers, such as prefers_color_scheme="dark"."""
        features = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def size(self, width, height):
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def ask(self, tokens):
        """Asks for a prompt on the page for that."""
        self.until("return document.querySelector('#ask-model option')")
        self.run("document.getElementById('ask-tokens').value = arguments[0]", tokens)
        self.find("#ask .go button").click()

    def requests(self):
        """Every address that the page asked for so far."""
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self._requested.append(message["params"]["request"]["url"])
        return self._requested

    def check_clean(self, unreachable=False):
        """Nothing was asked for elsewhere, and nothing went wrong in the page."""
        strangers = [url for url in self.requests() if not url.startswith((self.origin, "data:", "about:"))]
        assert not strangers, strangers
        said = [entry for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
        if unreachable:
            said = [entry for entry in said if UNREACHABLE not in entry["message"]]
        assert not said, said
