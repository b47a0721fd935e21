// Opens pages in a browser without a window, at the widths of a desktop and of a phone, and says what is wrong with them.
// Run where npm has installed the packages, by `node --input-type=module - '{"url": ..., "pages": [...], "shots": ...}'`.
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import chromium from "@sparticuz/chromium";
import puppeteer from "puppeteer-core";

const { url, pages, shots } = JSON.parse(process.argv[2]);
const WIDTHS = { desktop: { width: 1280, height: 900 }, phone: { width: 390, height: 844, hasTouch: true, isMobile: true } };

// Runs in the page: plots on which nothing is drawn, and how far it is wider than the window.
function examine(least, width) {
  const colourful = (canvas) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width || 1, canvas.height || 1);
    for (let at = 0; at < data.length; at += 4) {
      const [red, green, blue, alpha] = data.slice(at, at + 4);
      if (alpha > 60 && Math.max(red, green, blue) - Math.min(red, green, blue) > 60) return true;
    }
    return false;
  };
  const drawn = (svg) => [...svg.querySelectorAll("circle, rect, polyline")].some((mark) => {
    const box = mark.getBoundingClientRect();
    const style = getComputedStyle(mark);
    const colour = mark.tagName === "polyline" ? style.stroke : style.fill;
    return box.width > 0 && box.height > 0 && !["none", "rgb(0, 0, 0)"].includes(colour);
  });
  for (const details of document.querySelectorAll("details")) details.open = true;
  const shown = (plot) => plot.getBoundingClientRect().width > 0 && plot.checkVisibility();
  const svgs = [...document.querySelectorAll("svg")].filter(shown);
  const canvases = [...document.querySelectorAll("canvas.flot-base")].filter(shown);
  const empty = [...svgs.filter((svg) => !drawn(svg)), ...canvases.filter((canvas) => !colourful(canvas))];
  const wrong = empty.map((plot) => `empty plot: ${plot.getAttribute("aria-label") ?? plot.parentElement.id}`);
  const count = svgs.length + canvases.length;
  if (count < least) wrong.push(`${count} plots, not at least ${least}`);
  const beyond = document.documentElement.scrollWidth - width; // a phone's window grows with what is in it
  if (beyond > 0) wrong.push(`${beyond} pixels wider than the window`);
  return wrong;
}

async function look(browser, width, { path, name, plots, wait }) {
  const wrong = [];
  const page = await browser.newPage();
  page.on("console", (message) => message.type() === "error" && wrong.push(`console: ${message.text()}`));
  page.on("pageerror", (error) => wrong.push(`error: ${error.message}`));
  page.on("requestfailed", (request) => wrong.push(`failed: ${request.url()} ${request.failure()?.errorText}`));
  page.on("response", (response) => response.status() >= 400 && wrong.push(`${response.status()}: ${response.url()}`));
  page.on("request", (request) => {
    const from = new URL(request.url());
    if (from.protocol.startsWith("http") && from.host !== new URL(url).host) wrong.push(`another host: ${request.url()}`);
  });
  await page.setViewport(WIDTHS[width]);
  await page.goto(new URL(path, url).href, { waitUntil: "networkidle0" });
  if (wait) await page.waitForSelector(wait, { timeout: 10000 }).catch(() => wrong.push(`no ${wait}`));
  for (const scheme of shots ? ["light", "dark"] : []) {
    await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
    await page.screenshot({ path: join(shots, `${name}-${width}-${scheme}.png`), fullPage: true });
  }
  wrong.push(...await page.evaluate(examine, plots, WIDTHS[width].width));
  await page.close();
  return wrong.map((what) => `${name}, ${width}: ${what}`);
}

if (shots) await mkdir(shots, { recursive: true });
const args = ["--no-sandbox", "--no-zygote", "--disable-gpu", "--disable-dev-shm-usage", "--font-render-hinting=none"];
const browser = await puppeteer.launch({ executablePath: await chromium.executablePath(), args, headless: "shell" });
const found = [];
try {
  for (const width of Object.keys(WIDTHS)) for (const page of pages) found.push(...await look(browser, width, page));
} finally {
  await browser.close();
}
console.log(JSON.stringify(found));
