for (const button of document.querySelectorAll("button")) {
  button.hidden = false;
  button.onclick = async () => {
    const folded = button.nextElementSibling;
    const text = folded.lastElementChild;
    folded.open = true;
    getSelection().selectAllChildren(text);
    try {
      await navigator.clipboard.writeText(text.textContent);
    } catch {
      // Without a secure connection.
      document.execCommand("copy");
    }
    button.textContent = "Copied";
  };
}
