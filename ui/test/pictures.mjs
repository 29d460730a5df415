// The pictures of the documentation, taken of a real server: `npm run pictures`.

import { launch, Server, visit } from "./browser/stage.mjs";

const images = new URL("../../docs/images/", import.meta.url).pathname;
const server = await Server.start();
const browser = await launch();
const flow = (name, steps) => server.register(`flow: ${name}\nsteps:\n${steps}`);

await flow("fulfil-order", `
  check: { command: [sh, -c, "sleep 0.2; echo order looks right"], returns: order.accepted }
  charge: { subscribes: [order.accepted], command: [sh, -c, 'sleep 0.5; [ $(( $(date +%N | sed s/^0*//) % 3 )) != 0 ] || { echo the bank is busy >&2; exit 1; }; echo charged'], returns: order.charged, retry: { attempts: 4, delay: 300ms } }
  reserve: { subscribes: [order.accepted], command: [sh, -c, "sleep 0.3; echo shelf B-17"], returns: stock.reserved }
  ship: { subscribes: [order.charged, stock.reserved], command: [sh, -c, "sleep 0.4"], returns: order.shipped }
  notify: { subscribes: [order.shipped], command: [sh, -c, "sleep 0.1; echo mail sent"] }
`);
await flow("nightly-import", `
  fetch: { command: [sh, -c, "sleep 0.2; echo 1,204 rows"], returns: rows.fetched }
  parse: { subscribes: [rows.fetched], command: [sh, -c, "sleep 0.15; echo reading export.csv; echo 'export.csv:17: unexpected end of line' >&2; exit 3"], retry: { attempts: 3, delay: 250ms }, returns: rows.parsed }
  load: { subscribes: [rows.parsed], command: ["true"] }
`);
await server.register("flow: approval\naccepts: { approval.given: }\nsteps:\n  order: { subscribes: [approval.given], command: ['true'] }\n");
await flow("letters", "  write: { worker: letters }\n");

const failed = await server.start("nightly-import", { input: { file: "export.csv", rows: 1204 }, labels: { source: "erp" } });
for (let n = 0; n < 24; n++) await server.start("fulfil-order", { input: { order: `A-${1001 + n}`, total: 1900 }, labels: { customer: String(n % 5) } });
for (let n = 0; n < 3; n++) await server.start("approval", { input: { order: `B-${n}` } });
for (let n = 0; n < 4; n++) await server.start("letters");
await server.until(failed, "failed");
await new Promise((done) => setTimeout(done, 2500));

async function picture(name, path, colorScheme) {
  const page = await visit(browser, server, path, { colorScheme, width: 1280, height: 760 });
  await page.waitForTimeout(1500);
  await page.screenshot({ path: `${images}${name}.png` });
}
await picture("console-light", `/ui/runs/${failed}`, "light");
const { items } = await server.get("/v1/runs?flow=fulfil-order&status=completed");
const retried = items.find((run) => run.retries) ?? items[0];
await picture("console-dark", `/ui/runs/${retried.runId}?tab=graph&step=charge`, "dark");
await browser.close();
await server.stop();
