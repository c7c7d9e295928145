// Requests to the metrics port, with the tokens, which this module alone keeps, in memory.

let pageToken = "";
let adminToken = "";
let poolPath = "";

export class HttpError extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

export function usePageToken(token) {
  pageToken = token;
}

export function useAdminToken(token) {
  adminToken = token;
}

export function hasAdminToken() {
  return adminToken !== "";
}

/** Take all pages from one of several pools; "" where there is one. */
export function usePool(name) {
  poolPath = name ? `pools/${name.split("/").map(encodeURIComponent).join("/")}/` : "";
}

function url(path) {
  return new URL(`../debug/${path}`, document.baseURI);
}

async function ask(path, options, token) {
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  let response;
  try {
    response = await fetch(url(path), { ...options, headers, cache: "no-store", credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new HttpError(0, "The endpoint picker cannot be reached.");
  }
  if (response.ok) return response;
  let text = `The endpoint picker answered with status ${response.status}.`;
  try {
    text = (await response.json()).error || text;
  } catch {
    // Not a document of the endpoint picker; the status has to do.
  }
  throw new HttpError(response.status, text);
}

/** Return a page of the pool as JSON. */
export async function page(path) {
  return (await ask(poolPath + path, {}, pageToken)).json();
}

/** Return a page of the process as JSON. */
export async function processPage(path) {
  return (await ask(path, {}, pageToken)).json();
}

/** Make a changing call and return what came of it. */
export async function change(path, parameters) {
  const query = new URLSearchParams(parameters);
  try {
    return await (await ask(`${poolPath}${path}?${query}`, { method: "POST" }, adminToken)).json();
  } catch (error) {
    if (error.status === 401) adminToken = "";
    throw error;
  }
}

/** Yield the events of the pool as {kind, data}, until the connection ends. */
export async function* events(signal) {
  const response = await ask(`${poolPath}events`, { signal }, pageToken);
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += decoder.decode(value, { stream: true });
    let end;
    while ((end = text.indexOf("\n\n")) >= 0) {
      const event = { kind: "message", data: null };
      for (const line of text.slice(0, end).split("\n")) {
        if (line.startsWith("event: ")) event.kind = line.slice(7);
        else if (line.startsWith("data: ")) event.data = JSON.parse(line.slice(6));
      }
      text = text.slice(end + 2);
      yield event;
    }
  }
}
