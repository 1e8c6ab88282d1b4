// The ids of runs in the address, separated by commas; a comma inside a name is escaped.

export function joinIds(ids: string[]): string {
  return ids.map(encodeURIComponent).join(",");
}

export function splitIds(kept: string | undefined): string[] {
  return (kept ?? "").split(",").filter(Boolean).map(read);
}

function read(name: string): string {
  try {
    return decodeURIComponent(name);
  } catch {
    return name;
  }
}
