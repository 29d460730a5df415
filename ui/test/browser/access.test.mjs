// Signing in with a token, and what a token may do.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { APPROVAL } from "./flows.mjs";
import { launch, Server, visit } from "./stage.mjs";

let server, browser, admin;

before(async () => {
  // The first token is made on the store, before there is a server.
  const first = async (stage) => {
    admin = JSON.parse(await stage.cli("token", "create", "--subject", "ada", "--scope", "admin", "--json")).token;
  };
  server = await Server.start({ args: ["--auth", "tokens"], first });
  browser = await launch();
  await server.call("POST", "/v1/flows", APPROVAL, { authorization: `Bearer ${admin}` });
});
after(async () => {
  await browser?.close();
  await server?.stop();
});

const as = (token) => ({ authorization: `Bearer ${token}` });

async function signIn(page, token) {
  await page.getByLabel("API token").fill(token);
  await page.getByRole("button", { name: "Sign in" }).click();
}

test("a read token signs in and finds no acting button enabled; a revoked one gets the login", async () => {
  const made = await server.call("POST", "/v1/tokens", { subject: "reader", scopes: ["read"] }, as(admin));
  const { runId } = await server.call("POST", "/v1/flows/approval/runs", {}, as(admin));
  const page = await visit(browser, server, `/ui/runs/${runId}`);
  await signIn(page, "fl_wrong");
  await page.getByText("unknown, revoked or expired").waitFor();
  await signIn(page, made.token);
  await page.getByRole("button", { name: "Send approval.given" }).waitFor();
  for (const name of ["Send approval.given", "Pause", "Cancel…"]) assert.ok(await page.getByRole("button", { name }).isDisabled(), name);
  const [cookie] = await page.context().cookies();
  assert.ok(cookie.httpOnly && cookie.sameSite === "Strict");
  assert.equal(cookie.value.includes(made.token), false);
  await server.call("DELETE", `/v1/tokens/${made.id}`, undefined, as(admin));
  await page.getByLabel("API token").waitFor({ timeout: 15_000 });
});

test("a session acts from the console only, and ends when one signs out", async () => {
  const page = await visit(browser, server, "/ui/access");
  await signIn(page, admin);
  await page.getByText("You are").waitFor();
  const [cookie] = await page.context().cookies();
  const header = `${cookie.name}=${cookie.value}`;
  const ask = (headers) => fetch(`${server.url}/v1/flows/approval/runs`, { method: "POST", headers: { cookie: header, "content-type": "application/json", ...headers }, body: "{}" });
  assert.equal((await ask({ origin: "https://evil.example" })).status, 403);
  assert.equal((await ask({})).status, 403);
  assert.ok((await ask({ origin: server.url })).ok);
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByLabel("API token").waitFor();
  assert.equal((await fetch(`${server.url}/v1/runs`, { headers: { cookie: header } })).status, 401);
});
