// The names of runs as the address keeps them: a comma parts them, and may stand in a name too.

export function joined(ids: string[]): string {
  return ids.map(encodeURIComponent).join(",");
}

export function parted(kept: string | undefined): string[] {
  return (kept ?? "").split(",").filter(Boolean).map(read);
}

function read(name: string): string {
  try {
    return decodeURIComponent(name);
  } catch {
    return name;
  }
}
