// Keyboard: single keys and two-key sequences (`g r`), ignored while somebody types.

export type Keys = Record<string, (event: KeyboardEvent) => void>;

/** Listens for keys until the returned function is called. A name is a key, or two with a space between. */
export function listen(keys: Keys): () => void {
  let before = "";
  let timer = 0;
  const heard = (event: KeyboardEvent) => {
    const target = event.target as HTMLElement;
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) || target.isContentEditable;
    if (typing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const act = keys[before ? `${before} ${event.key}` : event.key] ?? keys[event.key];
    clearTimeout(timer);
    before = act ? "" : event.key;
    timer = window.setTimeout(() => (before = ""), 800);
    if (!act) return;
    event.preventDefault();
    act(event);
  };
  addEventListener("keydown", heard);
  return () => removeEventListener("keydown", heard);
}
