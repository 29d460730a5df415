// The worker that lays out graphs. The page's policy lets no script start from a string; this one place may, with an address
// of the console itself.

import address from "./layout.worker?worker&url";

interface Policy {
  createScriptURL(address: string): string;
}
interface Factory {
  createPolicy(name: string, rules: Policy): Policy;
}

const rules: Policy = {
  createScriptURL(text) {
    const { origin, pathname } = new URL(text, location.href);
    if (origin !== location.origin || !pathname.startsWith("/ui/")) throw new TypeError(`${text} isn't a script of the console`);
    return text;
  },
};
let policy: Policy | undefined;

export function layoutWorker(): Worker {
  const factory = (globalThis as { trustedTypes?: Factory }).trustedTypes;
  policy ??= factory ? factory.createPolicy("flowline", rules) : rules;
  return new Worker(policy.createScriptURL(address), { type: "module" });
}
