// Where the console is: everything that is seen has a URL, and Back restores it.

const BASE = "/ui";

export const place = $state({ path: strip(location.pathname), query: new URLSearchParams(location.search) });

function strip(path: string): string {
  const rest = path.startsWith(BASE) ? path.slice(BASE.length) : path;
  return rest === "" ? "/" : rest;
}

function read() {
  place.path = strip(location.pathname);
  place.query = new URLSearchParams(location.search);
}

/** Goes to a page of the console, such as `/runs?status=failed`. */
export function go(to: string) {
  history.pushState(null, "", BASE + to);
  read();
  scrollTo(0, 0);
}

/** Changes parameters of the page's query; an empty value removes one. `replace` leaves no entry in the history. */
export function change(values: Record<string, string | null>, replace = false) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(values)) {
    if (value) query.set(name, value);
    else query.delete(name);
  }
  const search = query.toString();
  history[replace ? "replaceState" : "pushState"](null, "", location.pathname + (search ? `?${search}` : ""));
  read();
}

export const href = (to: string) => BASE + to;

/** Lets links to pages of the console change the page without loading it anew. */
export function followLinks() {
  addEventListener("popstate", read);
  document.addEventListener("click", (event) => {
    const link = (event.target as Element | null)?.closest?.("a[href]") as HTMLAnchorElement | null;
    const plain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
    if (!link || !plain || link.target || link.origin !== location.origin || !link.pathname.startsWith(BASE)) return;
    event.preventDefault();
    go(strip(link.pathname) + link.search);
  });
}
