import { mount } from "svelte";
import App from "./App.svelte";
import "./app.css";
import { followLinks } from "./lib/router.svelte";

followLinks();
mount(App, { target: document.getElementById("app")! });
