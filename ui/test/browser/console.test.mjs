// The console in a real browser, against the real binary. Each test is a claim about what a person sees.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { APPROVAL, FAILING, FORM, MACHINE, QUICK, REMOTE } from "./flows.mjs";
import { axe, launch, Server, visit } from "./stage.mjs";

let server, browser;
const runs = {};

before(async () => {
  [server, browser] = await Promise.all([Server.start(), launch()]);
  for (const flow of [QUICK, FAILING, APPROVAL, REMOTE, FORM, MACHINE]) await server.register(flow);
  runs.quick = await server.start("quick", { input: { big: 1 }, labels: { customer: "42" } });
  runs.failing = await server.start("failing");
  runs.waiting = await server.start("approval");
  runs.machine = await server.start("door");
  await server.until(runs.quick, "completed");
  await server.until(runs.failing, "failed");
});
after(async () => {
  await browser?.close();
  await server?.stop();
});

const see = (page, text) => page.getByText(text).first().waitFor({ timeout: 8000 });

test("a waiting run says why in the words of explain, and the button of the remedy works", async () => {
  const run = await server.start("approval");
  await server.until(run, "waiting");
  const { summary } = await server.get(`/v1/runs/${run}/explain`);
  const page = await visit(browser, server, `/ui/runs/${run}`);
  await see(page, summary);
  await page.getByRole("button", { name: "Send approval.given" }).click();
  await page.getByRole("button", { name: "Send", exact: true }).click();
  await see(page, "completed; there's nothing left to do");
  assert.deepEqual(page.complaints, []);
});

test("a step appears within half a second of its commit, without reload", async () => {
  const run = await server.start("approval");
  await server.until(run, "waiting");
  const page = await visit(browser, server, `/ui/runs/${run}?tab=log`);
  await see(page, "● Live");
  const sent = Date.now();
  await server.post(`/v1/runs/${run}/events`, { name: "approval.given" });
  await page.locator("[role=log]").getByText("flow.completed").waitFor({ timeout: 5000 });
  const shown = Date.now();
  const events = (await server.get(`/v1/runs/${run}/events?limit=100`)).items;
  assert.ok(shown - Date.parse(events.at(-1).ts) < 2000, `${shown - sent} ms after it was sent`);
  assert.deepEqual(page.complaints, []);
});

test("a failed run shows step, error and last lines above the fold", async () => {
  const page = await visit(browser, server, `/ui/runs/${runs.failing}`);
  for (const text of ["Step parse failed", "exited with code 3", "line 17: unexpected end"]) {
    await see(page, text);
    const box = await page.getByText(text).last().boundingBox();
    assert.ok(box.y + box.height < 720, text);
  }
});

test("a retry from a chosen step lands on the new run, which names the old one", async () => {
  const page = await visit(browser, server, `/ui/runs/${runs.failing}`);
  await page.getByRole("button", { name: "Retry…" }).click();
  await page.getByLabel("Start from").selectOption("parse");
  await page.getByRole("button", { name: "Retry", exact: true }).click();
  await see(page, "retry of");
  const id = page.url().split("/").pop();
  assert.notEqual(id, runs.failing);
  assert.equal((await server.get(`/v1/runs/${id}`)).retryOf, runs.failing);
});

test("a bare run id in the palette arrives, by keyboard alone", async () => {
  const page = await visit(browser, server, "/ui/");
  await see(page, "Overview");
  await page.keyboard.press("Control+k");
  await page.keyboard.type(runs.quick);
  await page.keyboard.press("Enter");
  await see(page, "completed; there's nothing left to do");
  assert.ok(page.url().endsWith(runs.quick));
});

test("filters are in the URL, and Back restores each", async () => {
  const page = await visit(browser, server, "/ui/runs");
  await page.getByRole("button", { name: "failed" }).click();
  await page.getByText(runs.quick).waitFor({ state: "detached" });
  await page.getByText(runs.failing).waitFor();
  assert.match(page.url(), /status=failed/);
  await page.goBack();
  await page.getByText(runs.quick).waitFor();
  const fresh = await visit(browser, server, "/ui/runs?label=customer%3D42");
  await fresh.getByText(runs.quick).waitFor();
  assert.equal(await fresh.getByText(runs.failing).count(), 0);
});

test("all runs of a filter are cancelled after an exact preview", async () => {
  for (let n = 0; n < 3; n++) await server.start("approval", { labels: { batch: "b1" } });
  const page = await visit(browser, server, "/ui/runs?label=batch%3Db1");
  await page.getByRole("button", { name: "Act on all…" }).click();
  await page.getByRole("button", { name: "Cancel 3 runs" }).click();
  await see(page, "3 runs changed.");
  const left = await server.get("/v1/runs?label=batch%3Db1&status=cancelled");
  assert.equal(left.total, 3);
});

test("a paused queue is explained on its runs and resumed there", async () => {
  await server.post("/v1/queues/letters/pause");
  const run = await server.start("remote");
  const page = await visit(browser, server, `/ui/runs/${run}`);
  await see(page, 'queue "letters" is paused');
  await page.getByRole("button", { name: "Resume queue letters" }).click();
  await page.getByRole("button", { name: "Resume queue letters" }).waitFor({ state: "detached" });
  assert.equal((await server.get("/v1/queues/letters")).items[0].paused, false);
});

test("a queue that nobody serves says so, with the command that serves it", async () => {
  await server.start("remote");
  const page = await visit(browser, server, "/ui/queues/letters");
  await see(page, "Nobody serves this queue");
  await see(page, "flowline worker --server");
});

test("dead letters are retried from their queue, and the count falls", async () => {
  const dead = (await server.get("/v1/queues/default/dead")).items.length;
  assert.ok(dead > 0);
  const page = await visit(browser, server, "/ui/queues/default");
  await page.getByRole("button", { name: "Retry all as new runs" }).click();
  await see(page, /runs? retried/);
});

test("numbers are shown and copied as they were sent", async () => {
  const page = await visit(browser, server, `/ui/runs/${runs.quick}`);
  await see(page, '"big": 12345678901234567890');
  await see(page, '"price": 1.10');
  await page.getByRole("button", { name: "Copy the result" }).click();
  assert.match(await page.evaluate(() => navigator.clipboard.readText()), /12345678901234567890[\s\S]*1\.10/);
});

test("a copied command and a copied curl give what the page shows", async () => {
  const page = await visit(browser, server, "/ui/runs?status=failed");
  await page.getByText(runs.failing).waitFor();
  await page.getByRole("button", { name: "Copy as command" }).click();
  const command = await page.evaluate(() => navigator.clipboard.readText());
  const out = await server.cli(...command.split(" ").slice(1), "--json");
  assert.ok(out.includes(runs.failing) && !out.includes(runs.quick));
  await page.getByRole("button", { name: "Copy as curl" }).click();
  const url = /'([^']+)'$/.exec(await page.evaluate(() => navigator.clipboard.readText()))[1];
  assert.ok((await (await fetch(url)).text()).includes(runs.failing));
});

test("one switch moves every time between local time and UTC, each with its zone", async () => {
  const page = await visit(browser, server, `/ui/runs/${runs.quick}`);
  await page.getByText(/UTC\+0[12]:00/).first().waitFor();
  await page.getByRole("button", { name: /UTC\+0[12]:00/ }).click();
  assert.equal(await page.getByText(/UTC\+0[12]:00/).count(), 0);
  const { createdAt } = await server.get(`/v1/runs/${runs.quick}`);
  await see(page, createdAt.slice(11, 19));
});

test("a start form follows the schema, and problems show beside their fields", async () => {
  const page = await visit(browser, server, "/ui/flows/form");
  await page.getByRole("button", { name: "Start a run…" }).click();
  await page.getByLabel("rows").fill("11");
  await page.getByRole("button", { name: "Start", exact: true }).click();
  await see(page, "is required");
  await page.getByLabel("file").fill("a.csv");
  await page.getByRole("button", { name: "Start", exact: true }).click();
  await page.locator("label", { hasText: "rows" }).getByRole("alert").waitFor();
  await page.getByLabel("rows").fill("9");
  await page.getByRole("button", { name: "Start", exact: true }).click();
  await page.waitForURL(/\/ui\/runs\//);
  await see(page, '"rows": 9');
});

test("a machine's page sends an event, moves its state and shows the receipt", async () => {
  const page = await visit(browser, server, `/ui/runs/${runs.machine}?tab=events`);
  await page.getByRole("button", { name: "Send open" }).last().click();
  await page.getByRole("button", { name: "Send", exact: true }).click();
  await see(page, "closed → opened");
  assert.equal(await page.getByRole("button", { name: "Send lock" }).count(), 0);
});

test("the server away for a while: no event is missing or doubled afterwards", async () => {
  const run = await server.start("approval");
  await server.until(run, "waiting");
  const page = await visit(browser, server, `/ui/runs/${run}?tab=log`);
  await see(page, "● Live");
  await server.down();
  await see(page, "○ Reconnecting…");
  await server.up();
  await server.post(`/v1/runs/${run}/events`, { name: "approval.given" });
  await page.locator("[role=log]").getByText("flow.completed").waitFor({ timeout: 20_000 });
  const { items } = await server.get(`/v1/runs/${run}/events?limit=100`);
  const seen = await page.locator("[role=log] .seq").allTextContents();
  assert.deepEqual(seen.map(Number), items.map((event) => event.seq));
});

test("the eighth tab loads while seven follow runs", async () => {
  const context = await browser.newContext();
  const run = await server.start("approval");
  await server.until(run, "waiting");
  for (let tab = 0; tab < 7; tab++) {
    const page = await visit(browser, server, `/ui/runs/${run}`, { context });
    await see(page, "● Live");
    // A tab in the background is hidden; headless pages never are, so they are told.
    await page.evaluate(() => {
      Object.defineProperty(document, "hidden", { value: true, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    });
  }
  const began = Date.now();
  const page = await visit(browser, server, `/ui/runs/${run}`, { context });
  await see(page, "● Live");
  assert.ok(Date.now() - began < 8000);
  await context.close();
});

const PAGES = () => ["/ui/", "/ui/runs", `/ui/runs/${runs.failing}`, `/ui/runs/${runs.quick}?tab=graph&step=say`, `/ui/runs/${runs.quick}?tab=log&seq=2`, `/ui/runs/${runs.machine}?tab=graph`, "/ui/flows", "/ui/flows/form", "/ui/queues", "/ui/queues/letters", "/ui/workers", "/ui/access"];

for (const colorScheme of ["light", "dark"]) {
  test(`axe finds nothing on any page in ${colorScheme}, and the browser nothing to complain about`, async () => {
    for (const path of PAGES()) {
      const page = await visit(browser, server, path, { colorScheme });
      await page.waitForLoadState("networkidle").catch(() => {});
      await page.waitForTimeout(300);
      assert.deepEqual(await axe(page), [], path);
      assert.deepEqual(page.complaints, [], path);
      await page.context().close();
    }
  });
}

test("no page is wider than a small phone", async () => {
  for (const path of PAGES()) {
    const page = await visit(browser, server, path, { width: 360, height: 740 });
    await page.waitForTimeout(400);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    const widest = () => [...document.querySelectorAll("body *")].filter((one) => one.getBoundingClientRect().right > 361 && !one.closest(".scroll, .canvas, .chart, .tabs, nav")).map((one) => `${one.tagName}.${one.className}`).slice(0, 4).join(" ");
    assert.ok(wide <= 360, `${path} is ${wide} px wide: ${await page.evaluate(widest)}`);
    await page.context().close();
  }
});
