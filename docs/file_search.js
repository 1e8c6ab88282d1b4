// Search without a server: browsers start no worker from file://, so its script runs in a hidden frame instead.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const page = frame.contentDocument;
      frame.contentWindow.postMessage = (data) => setTimeout(() => this.#deliver(data)); // of the script: towards this page
      frame.contentWindow.importScripts = (...urls) =>
        urls.reduce((done, each) => done.then(() => new Promise((resolve, reject) => {
          const script = page.createElement("script");
          Object.assign(script, { src: each, onload: resolve, onerror: reject });
          page.body.append(script);
        })), Promise.resolve());
      const script = page.createElement("script");
      script.src = url;
      this.#ready = new Promise((resolve) => (script.onload = resolve));
      page.body.append(script);
      this.#frame = frame;
    }
    #frame;
    #ready;
    onmessage = null;
    #deliver(data) {
      const event = new MessageEvent("message", { data });
      this.onmessage?.(event);
      this.dispatchEvent(event);
    }
    postMessage(data) {
      this.#ready.then(() => this.#frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.#frame.remove();
    }
  };
