/** Copies text. `navigator.clipboard` exists only on HTTPS and localhost; elsewhere an off-screen field does it. */
export async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = document.createElement("textarea");
    field.value = text;
    field.className = "offscreen";
    field.setAttribute("aria-hidden", "true");
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}
