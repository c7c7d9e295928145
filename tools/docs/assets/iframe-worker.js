// Web workers for pages that are opened from a folder: browsers refuse these to start one, so the search
// of the site runs its script in a hidden frame. The name is that of the package that the theme would load.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.frame = frame
      const inner = frame.contentWindow
      inner.postMessageToPage = (data) => {
        const event = new MessageEvent("message", {data})
        this.dispatchEvent(event)
        if (this.onmessage) this.onmessage(event)
      }
      inner.document.open()
      inner.document.write(`<body><script>
        window.postMessage = (data) => postMessageToPage(data)
        window.importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((done) => {
          const script = document.createElement("script")
          script.src = url
          script.onload = done
          document.body.append(script)
        })), Promise.resolve())
      <\/script><script src="${new URL(url, location)}"><\/script>`)
      inner.document.close()
      this.loaded = new Promise((done) => { frame.onload = done })
    }
    postMessage(data) {
      this.loaded.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", {data})))
    }
    terminate() {
      this.frame.remove()
    }
  }
}
