// A real server on a store of its own, and a real browser. `FLOWLINE_BIN` names the binary, `CHROMIUM` the browser.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

const BIN = process.env.FLOWLINE_BIN ?? new URL("../../../target/debug/flowline", import.meta.url).pathname;
const AXE = await readFile(new URL("../../node_modules/axe-core/axe.min.js", import.meta.url), "utf8");

async function freePort() {
  const listener = createServer().listen(0, "127.0.0.1");
  await once(listener, "listening");
  const { port } = listener.address();
  await new Promise((done) => listener.close(done));
  return port;
}

export class Server {
  static async start({ args = [], store, first } = {}) {
    const server = new Server();
    server.folder = await mkdtemp(join(tmpdir(), "flowline-console-"));
    server.port = await freePort();
    server.url = `http://127.0.0.1:${server.port}`;
    server.args = args;
    server.env = { ...process.env, ...(store && { FLOWLINE_STORE: store }) };
    await first?.(server);
    await server.up();
    return server;
  }

  async up() {
    this.process = spawn(BIN, ["dev", "--listen", `127.0.0.1:${this.port}`, ...this.args], { cwd: this.folder, env: this.env, stdio: "ignore" });
    for (let tries = 0; tries < 600; tries++) {
      if (await fetch(`${this.url}/readyz`).then((response) => response.ok, () => false)) return;
      await new Promise((done) => setTimeout(done, 50));
    }
    throw new Error("the server doesn't answer");
  }

  async down() {
    this.process.kill("SIGKILL");
    await once(this.process, "exit");
  }

  async stop() {
    await this.down();
    await rm(this.folder, { recursive: true, force: true });
  }

  /** A command of the same binary on the same folder. */
  async cli(...args) {
    const child = spawn(BIN, args, { cwd: this.folder, env: this.env, stdio: ["ignore", "pipe", "inherit"] });
    let out = "";
    child.stdout.on("data", (part) => (out += part));
    await once(child, "close");
    return out;
  }

  async call(method, path, body, headers = {}) {
    const kind = typeof body === "string" ? "application/yaml" : "application/json";
    const response = await fetch(this.url + path, {
      method,
      headers: { ...(body !== undefined && { "content-type": kind }), ...headers },
      ...(body !== undefined && { body: typeof body === "string" ? body : JSON.stringify(body) }),
    });
    const text = await response.text();
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`);
    return text ? JSON.parse(text) : undefined;
  }
  get(path) {
    return this.call("GET", path);
  }
  post(path, body = {}) {
    return this.call("POST", path, body);
  }
  register(yaml) {
    return this.call("POST", "/v1/flows", yaml);
  }
  async start(flow, body = {}) {
    return (await this.post(`/v1/flows/${flow}/runs`, body)).runId;
  }
  async until(run, status) {
    for (let tries = 0; tries < 400; tries++) {
      const found = await this.get(`/v1/runs/${run}`);
      if (found.status === status) return found;
      await new Promise((done) => setTimeout(done, 50));
    }
    throw new Error(`run ${run} isn't ${status}`);
  }
}

export async function launch() {
  return chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  });
}

/** A page that fails its test on anything the browser complains about, and on any request to elsewhere. */
export async function visit(browser, server, path, { colorScheme = "light", width = 1280, height = 720, context: given } = {}) {
  const context = given ?? (await browser.newContext({ viewport: { width, height }, colorScheme, timezoneId: "Europe/Berlin", permissions: ["clipboard-read", "clipboard-write"] }));
  const page = await context.newPage();
  page.complaints = [];
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && page.complaints.push(message.text()));
  page.on("pageerror", (error) => page.complaints.push(error.message));
  page.on("request", (request) => new URL(request.url()).origin === server.url || page.complaints.push(`asked ${request.url()}`));
  await page.goto(server.url + path);
  return page;
}

/** What axe finds wrong with a page. Injected as the browser's own script, so that the page's policy stays on. */
export async function axe(page) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"] }));
  return violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.target.join(" ")).slice(0, 3).join(", ")}`);
}
