// Browsers start no worker for a page on disk. There, the search runs in a hidden frame, which answers as a worker does.
if (location.protocol === "file:") {
  class FrameWorker extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<!doctype html>";
      this.inside = new Promise((ready) => {
        frame.addEventListener("load", () => {
          const inside = frame.contentWindow;
          const load = (src) => new Promise((loaded) => {
            const script = inside.document.createElement("script");
            script.addEventListener("load", () => loaded(inside));
            script.src = src;
            inside.document.head.append(script);
          });
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          inside.importScripts = async (...list) => { for (const src of list) await load(src); };
          load(address).then(ready);
        }, { once: true });
      });
      document.body.append(frame);
    }

    async postMessage(data) {
      (await this.inside).dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {}
  }
  window.Worker = FrameWorker;
  window.IFrameWorker = FrameWorker; // by this name the search knows that it is in a frame
}
