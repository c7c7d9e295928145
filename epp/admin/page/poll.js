// Asks for a page again and again while its section is in view.

import { page } from "./api.js";

/** Call take(document, error) every few seconds until stop() of the result is called. */
export function poll(path, milliseconds, take) {
  let isStopped = false;
  let timer = 0;
  async function ask() {
    if (!document.hidden) {
      let found = null;
      let error = null;
      try {
        found = await page(typeof path === "function" ? path() : path);
      } catch (failure) {
        error = failure;
      }
      if (isStopped) return;
      take(found, error);
    }
    if (!isStopped) timer = setTimeout(ask, milliseconds);
  }
  ask();
  return {
    stop() {
      isStopped = true;
      clearTimeout(timer);
    },
    now() {
      clearTimeout(timer);
      ask();
    },
  };
}
