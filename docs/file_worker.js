// Searching works where the manual is opened as a file: browsers start no Worker there, so its script
// runs in a hidden frame that passes the same messages.
if (location.protocol === "file:") {
  self.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.appendChild(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.answer(data);
      this.inside.importScripts = () => {};
      const script = frame.contentDocument.createElement("script");
      script.src = url;
      script.onload = () => {
        this.loaded = true;
        for (const data of this.waiting) this.postMessage(data);
      };
      frame.contentDocument.documentElement.appendChild(script);
    }
    answer(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }
    postMessage(data) {
      if (!this.loaded) this.waiting.push(data);
      else this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }));
    }
    terminate() {}
  };
}
