// A link out of docs/ works in the repository, and the site has no such page: it becomes text that names the file.
(() => {
    const root = new URL(path_to_root || "./", location.href).href;
    const page = "http://repository/docs/" + location.href.slice(root.length);
    for (const link of document.querySelectorAll("main a[href]")) {
        if (new URL(link.href).origin !== location.origin || link.href.startsWith(root)) continue;
        const file = new URL(link.getAttribute("href"), page).pathname.slice(1);
        // mdBook has made .html of .md; a run's directory has both.
        const shown = file.startsWith("results/") ? file.replace(/[^/]*$/, "") : file.replace(/\.html$/, ".md");
        link.title = `in the repository: ${shown}`;
        link.removeAttribute("href");
    }
})();
