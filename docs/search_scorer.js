// How the site's search orders what it finds: pages whose title has the words come first, then pages for users,
// then the rest. The numbers beside "score" are Sphinx's own.
const words = (new URLSearchParams(window.location.search).get("q") || "").toLowerCase().split(/\W+/).filter(Boolean);

var Scorer = {
    score: ([docname, title, anchor, description, score]) => {
        const text = title.toLowerCase();
        const inTitle = words.filter((word) => text.includes(word)).length / Math.max(words.length, 1);
        const place = /^(start|guide|coming_from|memory$|torch$)/.test(docname) ? 6 : /^made\//.test(docname) ? -8 : 0;
        return score + 20 * inTitle + place + (anchor ? -1 : 0);
    },
    objNameMatch: 11,
    objPartialMatch: 6,
    objPrio: { 0: 15, 1: 5, 2: -5 },
    objPrioDefault: 0,
    title: 15,
    partialTitle: 7,
    term: 5,
    partialTerm: 2,
};
